package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/loop"
)

// Fetching from a real broker, whatever keeps the topic: any range, the end, what is outside, and waiting.
func TestFetch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var c *Client
	for _, storage := range []codec.Storage{codec.StorageFile, codec.StorageQueue} {
		door := loop.NewInProcess()
		cfg := loop.Config{Listener: door}
		if storage == codec.StorageFile {
			cfg.DataDir = t.TempDir()
		}
		startReal(t, cfg)
		var err error
		if c, err = Dial(ctx, "tcp://in-process:0", WithDialer(door.Dial)); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		name := fmt.Sprintf("orders-%d", storage)
		if _, err := c.CreateTopic(ctx, name, TopicSettings{Storage: storage}); err != nil {
			t.Fatal(err)
		}
		p, err := c.Producer(ctx, name, Compress(codec.CompressionZstd), Linger(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		const batches, each = 40, 50
		for i := range batches * each {
			if err := p.PublishValue(ctx, 0, fmt.Appendf(nil, "record %d", i)); err != nil {
				t.Fatal(err)
			}
			if i%each == each-1 {
				if err := p.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		replay := func(from Start, limit codec.Offset) (got []string) {
			t.Helper()
			for r, err := range c.Replay(ctx, name, 0, from, limit) {
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("record %d", r.Offset); string(r.Value) != want {
					t.Fatalf("%q, want %q", r.Value, want)
				}
				got = append(got, string(r.Value))
			}
			return got
		}
		const end = batches * each
		for _, tt := range []struct {
			from        Start
			limit       codec.Offset
			first, next int
		}{
			{Earliest(), 0, 0, end},
			{AtOffset(0), 0, 0, end},
			{AtOffset(75), 0, 75, end},
			{AtOffset(75), 230, 75, 230},
			{AtOffset(75), 76, 75, 76},
			{AtOffset(100), 100, 100, 100},
			{Latest(), 0, end, end},
			{AtOffset(end), 0, end, end},
			{AtOffset(end - 1), 2 * end, end - 1, end},
		} {
			got := replay(tt.from, tt.limit)
			if len(got) != tt.next-tt.first || len(got) > 0 && got[0] != fmt.Sprintf("record %d", tt.first) {
				t.Errorf("storage %d from %+v to %d: %d records, want %d to %d", storage, tt.from, tt.limit, len(got), tt.first, tt.next)
			}
		}
		for _, err := range c.Replay(ctx, name, 0, Earliest(), 0) {
			if err != nil {
				t.Error(err)
			}
			break // leaving early is no harm
		}

		// One byte still brings a batch, whole.
		f, err := c.Fetch(ctx, name, 0, AtOffset(60), FetchOptions{MaxBytes: 1})
		if err != nil || len(f.Batches) != 1 || f.Batches[0].BaseOffset() != 50 || f.Next != 100 || f.High != end || f.Start != 0 {
			t.Errorf("storage %d: %+v %v", storage, f, err)
		}
		_, err = c.Fetch(ctx, name, 0, AtOffset(end+1), FetchOptions{})
		var wire *codec.WireError
		if !errors.Is(err, codec.CodeOffsetOutOfRange) || !errors.As(err, &wire) || wire.Range != (codec.Range{Start: 0, Next: end}) {
			t.Errorf("storage %d: %v", storage, err)
		}
		f, err = c.Fetch(ctx, name, 0, AtOffset(end), FetchOptions{})
		if err != nil || len(f.Batches) != 0 || f.Next != end {
			t.Errorf("storage %d: %+v %v", storage, f, err)
		}
		waited := make(chan Fetched, 1)
		go func() {
			f, err := c.Fetch(ctx, name, 0, AtOffset(end), FetchOptions{Wait: 50 * time.Second})
			if err != nil {
				t.Error(err)
			}
			waited <- f
		}()
		if _, err := c.Describe(ctx, name); err != nil { // beside it, the connection serves others
			t.Error(err)
		}
		if err := p.PublishValue(ctx, 0, []byte("later")); err != nil {
			t.Fatal(err)
		}
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if f := <-waited; len(f.Batches) != 1 || f.Batches[0].BaseOffset() != end {
			t.Errorf("storage %d: %+v", storage, f)
		}
		if _, err := c.Purge(ctx, name, 0); err == nil {
			if _, err := c.Fetch(ctx, name, 0, AtOffset(0), FetchOptions{}); !errors.Is(err, codec.CodeOffsetOutOfRange) {
				t.Errorf("storage %d: %v", storage, err)
			}
		}
	}
	if _, err := c.Fetch(ctx, "missing", 0, Earliest(), FetchOptions{}); !errors.Is(err, codec.CodeUnknownTopic) {
		t.Error(err)
	}
	for _, o := range []FetchOptions{{Limit: -1}, {MaxBytes: -1}, {Wait: -1}, {Wait: time.Hour}} {
		if _, err := c.Fetch(ctx, "orders-1", 0, Earliest(), o); err == nil || isConn(err) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := c.Fetch(ctx, "orders-1", -1, Earliest(), FetchOptions{}); !errors.Is(err, codec.CodeUnknownPartition) {
		t.Error(err)
	}
}

// Gaps are told, and a reply that contradicts itself is not believed.
func TestFetchReplies(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		at := func(base codec.Offset, values ...string) codec.Batch {
			b := buildBatch(t, values...)
			b.SetBase(base, 0)
			return b
		}
		var replies [][]byte
		reply := func(m codec.FetchReply, batches ...codec.Batch) {
			var payload []byte
			for _, b := range batches {
				payload = append(payload, b...)
			}
			if m.Count == 0 {
				m.Count = uint16(len(batches))
			}
			replies = append(replies, append(codec.AppendFetchReply(nil, 0, &m, len(payload)), payload...))
		}
		f.on = func(c *fakeConn, h codec.Header, _, _ []byte) bool {
			if h.Type != codec.TypeFetch {
				return false
			}
			frame := replies[0]
			replies = replies[1:]
			frame[8], frame[9], frame[10], frame[11] = byte(h.Correlation>>24), byte(h.Correlation>>16), byte(h.Correlation>>8), byte(h.Correlation)
			c.send(frame)
			return true
		}
		c := f.client()
		defer f.stop(c)
		gap := codec.Gap{From: 2, Next: 10, Reason: codec.GapExpired}
		reply(codec.FetchReply{Next: 2, High: 12}, at(0, "a", "b"))
		reply(codec.FetchReply{Next: 10, High: 12, Gap: gap})
		reply(codec.FetchReply{Next: 12, High: 20}, at(10, "c"), at(11, "d"))
		var got []string
		for r, err := range c.Replay(t.Context(), "orders", 0, Earliest(), 0) {
			var lost *GapError
			if errors.As(err, &lost) {
				got = append(got, fmt.Sprint("gap to ", lost.Gap.Next))
			} else if err != nil {
				t.Fatal(err)
			} else {
				got = append(got, string(r.Value))
			}
		}
		if !slices.Equal(got, []string{"a", "b", "gap to 10", "c", "d"}) || len(replies) != 0 {
			t.Errorf("got %q", got)
		}
		broken := at(0, "a")
		broken[len(broken)-1] ^= 1
		for name, make := range map[string]func(){
			"a hole":        func() { reply(codec.FetchReply{Next: 3, High: 3}, at(0, "a"), at(2, "c")) },
			"a bad batch":   func() { reply(codec.FetchReply{Next: 1, High: 1}, broken) },
			"too few bytes": func() { reply(codec.FetchReply{Next: 2, High: 2, Count: 2}, at(0, "a")) },
			"too many":      func() { reply(codec.FetchReply{Next: 1, High: 1, Count: 1}, at(0, "a"), at(1, "b")) },
		} {
			make()
			if f, err := c.Fetch(t.Context(), "orders", 0, Earliest(), FetchOptions{}); err == nil {
				t.Errorf("%s: %+v", name, f)
			}
		}
		// A broker that sends nothing and goes nowhere is not asked for ever.
		reply(codec.FetchReply{Next: 0, High: 5})
		for _, err := range c.Replay(t.Context(), "orders", 0, AtOffset(0), 0) {
			t.Error("something came", err)
		}
	})
}
