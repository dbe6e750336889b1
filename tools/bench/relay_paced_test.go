package main

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/lightio/lightq/internal/loadgen"
)

func TestPacedRelay(t *testing.T) {
	const rate, messages = 2000, 500
	s, err := measurePacedRelay(testContext(t), rate, messages)
	if err != nil {
		t.Fatal(err)
	}
	l := s.Latency
	if s.Messages != messages || l.Count != messages || l.P50 <= 0 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.P999 || l.P999 > l.Max {
		t.Errorf("%+v", s)
	}
	// Nothing arrives before it was sent. The one is measured by the monotonic clock, the other by the time of day, which may
	// be corrected meanwhile: by 0.1 ms in such a run at most.
	if late := float64(s.LateNS) / 1e3; s.LateNS <= 0 || late > l.Max+1000 {
		t.Errorf("at most %v µs late, and a latency of at most %v µs", late, l.Max)
	}
	if len(s.Processes) != 3 || s.Processes[0].Name != "sender" || s.Processes[2].Name != "receiver" {
		t.Errorf("processes %+v", s.Processes)
	}
}

// paced returns count messages that were sent at the time of their number, as a sender makes them up.
func paced(count int) []byte {
	b := make([]byte, count*pacedBytes)
	for i := range count {
		m := b[i*pacedBytes:]
		binary.BigEndian.PutUint64(m[messageSequence:], uint64(i))
		binary.BigEndian.PutUint64(m[messageSent:], uint64(i))
	}
	return b
}

func TestPacedReceiver(t *testing.T) {
	whole := paced(3)
	for _, c := range []struct {
		name   string
		writes [][]byte
		says   string
	}{
		{"whole", [][]byte{whole[:pacedBytes], whole[pacedBytes : 2*pacedBytes], whole[2*pacedBytes:]}, ""},
		{"together", [][]byte{whole}, ""},
		{"in pieces", [][]byte{whole[:1], whole[1:200], whole[200:383], whole[383:]}, ""},
		{"one lost", [][]byte{whole[:pacedBytes], whole[2*pacedBytes:]}, "message 2 came instead of 1"},
		{"one twice", [][]byte{whole[:pacedBytes], whole}, "message 0 came instead of 1"},
		{"cut off", [][]byte{whole[:300]}, "44 bytes of a message at the end"},
	} {
		addr := make(chan string, 1)
		type outcome struct {
			res roleResult
			err error
		}
		done := make(chan outcome, 1)
		go func() {
			res, err := runPacedReceiver(func(a string) { addr <- a })
			done <- outcome{res, err}
		}()
		var fd int
		select {
		case a := <-addr:
			var err error
			if fd, err = dialLoopback(a); err != nil {
				t.Fatal(err)
			}
		case got := <-done:
			t.Fatal(got.err)
		}
		for _, b := range c.writes {
			if err := writeBlock(fd, b); err != nil && c.says == "" {
				t.Error(err)
			}
		}
		closeSocket(fd)
		got := <-done
		switch {
		case c.says != "":
			if got.err == nil || !strings.Contains(got.err.Error(), c.says) {
				t.Errorf("%s: error %v instead of %q", c.name, got.err, c.says)
			}
		case got.err != nil:
			t.Errorf("%s: %v", c.name, got.err)
		case got.res.Latency.Count != 3 || got.res.Bytes != 3*pacedBytes || got.res.Latency.P50 != got.res.Latency.Max:
			// Sent half a century ago: more than the histogram holds, so that all of them count as an hour.
			t.Errorf("%s: %+v", c.name, got.res)
		}
	}
}

// What is read here is where package loadgen writes it.
func TestMessagePositions(t *testing.T) {
	var got []byte
	s := loadgen.NewSender(loadgen.NewRunID(), 0, 3, pacedBytes)
	if err := s.Run(t.Context(), publisherFunc(func(value []byte) { got = append(got, value...) })); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		m := got[i*pacedBytes:]
		if seq := binary.BigEndian.Uint64(m[messageSequence:]); seq != uint64(i) {
			t.Errorf("sequence %d instead of %d", seq, i)
		}
		first := loadgen.ReportOf("", 0, pacedBytes, []*loadgen.Sender{s}).Partitions[0].FirstSentNS
		if sent := int64(binary.BigEndian.Uint64(m[messageSent:])); sent != first {
			t.Errorf("sent at %d instead of %d", sent, first)
		}
	}
}

// A publisherFunc takes what a loadgen.Sender publishes.
type publisherFunc func(value []byte)

func (f publisherFunc) PublishValue(_ context.Context, _ int, value []byte) error {
	f(value)
	return nil
}

func (publisherFunc) Flush(context.Context) error { return nil }
