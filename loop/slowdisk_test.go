package loop

import (
	"fmt"
	"sync"
	"testing"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// Case F28, for topics in files: producers that send all that their windows allow are held up by a disk that stands still. What is
// under way is bounded, administration and consumers of other topics are served, also on a connection that publishes and
// consumes, and when the disk goes on everything is confirmed and delivered.
func TestF28DiskStandsStill(t *testing.T) {
	fault := vfs.NewFault(vfs.NewMem())
	var mu sync.RWMutex // held while the disk stands still
	fault.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite || op.Kind == vfs.OpWriteSync || op.Kind == vfs.OpSync {
			mu.RLock() // waits
			defer mu.RUnlock()
		}
		return nil
	})
	const window = 256 << 10
	cfg := diskConfig(fault)
	cfg.Limits.WindowBytes = window
	b := startBroker(t, cfg)
	admin := dial(t, b).hello()
	admin.create("files", fileSettings())
	admin.create("memory", codec.TopicSettings{})

	const producers = 4
	peers := make([]*peer, producers)
	for i := range peers {
		peers[i] = dial(t, b).hello()
		peers[i].open(1, "files", 0, 1)
		peers[i].subscribe(2, codec.Subscribe{Topic: "files", From: codec.FromEarliest, CreditBytes: 32 << 20})
	}
	// One that serves memory on the same connection as the files, before the disk stops: its offsets are reserved by then.
	peers[0].open(3, "memory", 0, 1)
	peers[0].published(3, 1, 0, batchOf([]byte("before")))

	mu.Lock()
	still := true
	defer func() {
		if still {
			mu.Unlock()
		}
	}()
	batch := batchOf(make([]byte, 32<<10))
	const n = window / (32 << 10) // the last overshoots the window
	for _, p := range peers {
		for i := range n {
			p.write(publishFrame(1, 1, uint64(i), batch))
		}
	}
	eventually(t, "all to be with the broker", func() bool {
		return b.slabs.InUseBytes() >= producers*n*(32<<10)
	})
	if most := int64(producers*(n+1)*(64<<10) + 4<<20); b.slabs.InUseBytes() > most {
		t.Errorf("%d bytes are under way", b.slabs.InUseBytes())
	}
	if d := admin.describe("files").Partitions[0]; d.High != 0 || d.Durable != 0 {
		t.Errorf("on a disk that stands still: %+v", d)
	}
	for i := range 10 {
		peers[0].published(3, 1, uint64(1+i), batchOf(fmt.Appendf(nil, "%d", i)))
	}
	other := dial(t, b).hello()
	other.subscribe(1, codec.Subscribe{Topic: "memory", From: codec.FromEarliest, CreditBytes: 1 << 20})
	if values, _ := other.records(1, 0, 11, false); len(values) != 11 {
		t.Errorf("%d records of the topic in memory", len(values))
	}

	mu.Unlock()
	still = false
	for _, p := range peers {
		// Confirms and records come in any order.
		confirmed, delivered := 0, codec.Offset(0)
		for confirmed < n || delivered < producers*n {
			h, section, payload := p.next()
			switch h.Type {
			case codec.TypeConfirm:
				m, err := codec.ParseConfirm(section, payload)
				if err != nil {
					t.Fatal(err)
				}
				for i := range int(m.Count) {
					if r := codec.ResultAt(payload, i); r.Code != codec.CodeNone {
						t.Fatalf("refused: %s", r.Code)
					}
				}
				confirmed += int(m.Count)
			case codec.TypeDeliver:
				d := p.delivery(h, section, payload)
				for _, batch := range d.batches {
					if batch.BaseOffset() != delivered {
						t.Fatalf("offset %d follows %d", batch.BaseOffset(), delivered)
					}
					delivered = batch.NextOffset()
				}
			case codec.TypeHeartbeat:
			default:
				t.Fatalf("a frame of type %s", h.Type)
			}
		}
	}
}
