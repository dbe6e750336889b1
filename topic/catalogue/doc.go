// Package catalogue keeps the durable list of the topics of a broker, whatever their storage: names, ids, settings, users, and the
// offset ceilings of what is visible before it is durable. It also hands out the ids of idempotent producers.
//
//	DATA/producer-ids            DATA/producer-ids.old
//	DATA/topics/<32 hex digits>/topic       the entry: this directory is the topic
//	                           /topic.old   the entry before
//	                           /0 /1 …      the partitions' logs, which are the journal's
//
// docs/CATALOGUE.md specifies the files and what holds after a crash. In short: what was acknowledged stays, whatever happens at
// whatever moment; an entry is the old or the new one; and nothing that holds data is ever removed because an entry is lost or
// not understood: such a topic is set aside, reported, and can be adopted again.
//
// # Ownership and threads
//
// A Catalogue may be used by any goroutine; it starts none. Its methods wait for the disk under one lock, so never call them from
// a reactor or under a lock that one waits for. The caller holds the lock of the data directory (journal.LockDir).
//
// # What it does not do
//
// It does not open logs, check logins, or know the rule of topic names: a name is any text of up to 249 bytes to it, and never
// becomes part of a path.
package catalogue
