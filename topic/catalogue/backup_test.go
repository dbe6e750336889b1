package catalogue

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
	"github.com/lightio/lightq/journal/vfs"
)

// A data directory is copied while it is written to, in the order that docs/CATALOGUE.md gives: of each partition the segments that
// are there, newest first, then the topics' entries, then the producer ids. Between any two blocks that are copied records are
// appended, segments rolled and entries replaced. The copy opens without damage, with everything that was durable when it began.
func TestCopyWhileRunning(t *testing.T) {
	mem, to := vfs.NewMem(), vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	e.Settings.Storage, e.Settings.Partitions, e.Ceilings = codec.StorageQueueFile, 1, []codec.Offset{1}
	mustPut(t, c, e)
	syncers := journal.NewSyncers(2)
	defer syncers.Close()
	durable := make(chan codec.Offset, 1000)
	opts := journal.Options{
		Topic: journal.TopicID(e.ID), Syncers: syncers, SegmentBytes: 16 << 10,
		OnProgress: func(p journal.Progress) {
			if p.Err == nil {
				durable <- p.Durable
			}
		},
	}
	l, err := journal.Open(mem, c.PartitionDir(e.ID, 0), opts)
	if err != nil {
		t.Fatal(err)
	}
	var reserved int64
	use := func() {
		t.Helper()
		var w codec.BatchBuilder
		w.Reset(nil, 1<<20)
		w.AddValue(1_700_000_000_000, fmt.Appendf(make([]byte, 3000), "record %d", l.Next()))
		b := w.Finish(codec.NoProducer)
		codec.Batch(b).SetBase(l.Next(), 0)
		if err := l.Append([][]byte{b}); err != nil {
			t.Fatal(err)
		}
		for d := codec.Offset(0); d < l.Next(); d = <-durable {
		}
		e.Ceilings[0] = l.Next() + 10
		mustPut(t, c, e)
		if reserved, err = c.ReserveProducerIDs(600); err != nil {
			t.Fatal(err)
		}
	}
	for range 30 {
		use()
	}
	began, ceiling, ids := l.Durable(), e.Ceilings[0], reserved

	blocks := 0
	copyFile := func(name string) {
		t.Helper()
		f, err := mem.OpenRead(name)
		if errors.Is(err, vfs.ErrNotRegular) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		var content []byte
		for {
			block := make([]byte, 1000)
			n, err := f.ReadAt(block, int64(len(content)))
			content = append(content, block[:n]...)
			if err != nil {
				break
			}
			blocks++
			use()
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, to, name, content)
	}
	names, err := journal.Segments(mem, c.PartitionDir(e.ID, 0))
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(names)
	for _, name := range names {
		copyFile(name)
	}
	copyFile(path.Join(c.topicDir(e.ID), entryName))
	copyFile(path.Join(testDir, producerIDsName))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if blocks < 20 || len(names) < 3 {
		t.Fatalf("only %d blocks of %d segments were copied", blocks, len(names))
	}

	restored, r := mustOpen(t, to)
	if r.Topics != 1 || r.SetAside != 0 || r.FellBackCount != 0 {
		t.Fatalf("report %+v", r)
	}
	got := restored.Entries()[0]
	if got.Ceilings[0] < ceiling {
		t.Errorf("the ceiling is %d, it was %d", got.Ceilings[0], ceiling)
	}
	if first, err := restored.ReserveProducerIDs(1); err != nil || first <= ids {
		t.Errorf("ids from %d, error %v; %d was given out", first, err, ids)
	}
	readers := journal.NewReaders(1, 1)
	defer readers.Close()
	opts.Readers = readers
	copied, err := journal.Open(to, restored.PartitionDir(e.ID, 0), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = copied.Close() }()
	if rep := copied.Report(); rep.DamageCount != 0 || copied.Start() != 0 || copied.Next() < began {
		t.Errorf("offsets %d to %d, %d was durable, report %+v", copied.Start(), copied.Next(), began, rep)
	}
	for at := codec.Offset(0); at < copied.Next(); {
		done := make(chan struct{})
		read := journal.Read{Offset: at, Buf: make([]byte, 1<<20), Done: func(*journal.Read) { close(done) }}
		if err := copied.Read(&read); err != nil {
			t.Fatal(err)
		}
		<-done
		if read.Err != nil {
			t.Fatalf("at %d: %v", at, read.Err)
		}
		for rest := read.Data; len(rest) > 0; {
			b, more, err := codec.NextBatch(rest)
			if err != nil || b.BaseOffset() != at {
				t.Fatalf("at %d: batch at %d, error %v", at, b.BaseOffset(), err)
			}
			at, rest = b.NextOffset(), more
		}
	}
	got.Ceilings, e.Ceilings = nil, nil
	if diff := cmp.Diff(e, got); diff != "" {
		t.Errorf("the entry (-want +got):\n%s", diff)
	}
}
