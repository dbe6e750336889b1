// Package vfs is the small file system under the journal: what a log needs and no more, so that a test can stand in for the
// disk and take it away at every single operation.
//
// There are three implementations. [OS] is the machine's own. [Mem] keeps files in memory and knows, for every sector and
// every name, whether it would survive a power cut; [Mem.CrashClone] makes what a machine might find afterwards, from a seed.
// [Fault] wraps another one and delays, refuses, or stops the world at a chosen operation.
//
// Names are slash-separated paths. All methods may be called from any goroutine. What survives a power cut is only what was
// synced: bytes by [File.Sync] and [File.WriteSync], names by [FS.SyncDir] of the directory that holds them.
package vfs
