package catalogue

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"log/slog"
	"path"
	"strings"
	"testing"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
	"github.com/lightio/lightq/journal/vfs"
)

const testDir = "/data"

func testID(n byte) codec.TopicID { return codec.TopicID{0: n, 15: 0xee} }

func testEntry(n byte, name string) Entry {
	return Entry{
		Name: name, ID: testID(n), CreatedMillis: 1_700_000_000_000 + int64(n),
		Settings: codec.TopicSettings{
			Storage: codec.StorageQueue, Partitions: 2, Overflow: codec.OverflowReject,
			RingBytes: 64 << 20, MaxBatchBytes: 1 << 20,
		},
		Ceilings: []codec.Offset{0, 1000},
	}
}

// quiet logs into the test's output.
func quiet(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, nil))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func mustOpen(t testing.TB, fsys vfs.FS) (*Catalogue, Report) {
	t.Helper()
	c, r, err := Open(fsys, testDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c, r
}

func mustPut(t testing.TB, c *Catalogue, e Entry) {
	t.Helper()
	if err := c.Put(e); err != nil {
		t.Fatal(err)
	}
}

// write gives a file a content, durably.
func write(t testing.TB, fsys vfs.FS, name string, b []byte) {
	t.Helper()
	if err := removeFile(fsys, name); err != nil {
		t.Fatal(err)
	}
	if err := vfs.MkdirAll(fsys, path.Dir(name)); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(fsys, name, b); err != nil {
		t.Fatal(err)
	}
	if err := fsys.SyncDir(path.Dir(name)); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.OpenRead(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		t.Fatal(err)
	}
	return b
}

// tree is everything in a directory: names with their contents.
func tree(t testing.TB, fsys vfs.FS, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	var walk func(dir string)
	walk = func(dir string) {
		list, err := fsys.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			name := path.Join(dir, e.Name)
			switch e.Kind {
			case vfs.Dir:
				all[name] = "directory"
				walk(name)
			case vfs.Regular:
				all[name] = string(read(t, fsys, name))
			default:
				all[name] = "other"
			}
		}
	}
	walk(dir)
	return all
}

// writeLog makes a log of a partition with records in it and returns the offset behind them.
func writeLog(t testing.TB, fsys vfs.FS, dir string, id codec.TopicID, partition uint32, records int) codec.Offset {
	t.Helper()
	syncers := journal.NewSyncers(1)
	defer syncers.Close()
	l, err := journal.Open(fsys, dir, journal.Options{Topic: journal.TopicID(id), Partition: partition, Syncers: syncers})
	if err != nil {
		t.Fatal(err)
	}
	for range records {
		var w codec.BatchBuilder
		w.Reset(nil, 1<<20)
		w.AddValue(1_700_000_000_000, fmt.Appendf(nil, "record %d", l.Next()))
		b := w.Finish(codec.NoProducer)
		codec.Batch(b).SetBase(l.Next(), 0)
		if err := l.Append([][]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	next := l.Next()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return next
}

func checksum(s string) uint32 { return crc32.Checksum([]byte(s), castagnoli) }

func unbase64(t testing.TB, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mac(key, message []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(message)
	return m.Sum(nil)
}

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:]
}

var quietForSweep = slog.New(slog.DiscardHandler)
