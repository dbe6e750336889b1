package loop

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
)

// What a net.Conn promises, of the connection in memory: content, half-close, close, deadlines.
func TestMemPipe(t *testing.T) {
	t.Run("content", func(t *testing.T) {
		a, b := memPipe()
		const total = 40 << 20
		go func() {
			chunk := make([]byte, 700_001)
			for at := 0; at < total; {
				n := min(len(chunk), total-at)
				fill(chunk[:n], at)
				if _, err := a.Write(chunk[:n]); err != nil {
					t.Errorf("write at %d: %v", at, err)
					return
				}
				at += n
			}
			_ = a.(*memConn).CloseWrite()
		}()
		want, got := make([]byte, 100_003), make([]byte, 100_003)
		at := 0
		for {
			n, err := b.Read(got)
			fill(want[:n], at)
			if string(got[:n]) != string(want[:n]) {
				t.Fatalf("bytes differ behind %d", at)
			}
			at += n
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if at != total {
			t.Fatalf("got %d of %d bytes", at, total)
		}
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatalf("the other direction after a half-close: %v", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := memPipe()
			read := make(chan error, 1)
			go func() { _, err := b.Read(make([]byte, 1)); read <- err }()
			wrote := make(chan error, 1)
			go func() { _, err := b.Write(make([]byte, 2*memBufferBytes)); wrote <- err }()
			synctest.Wait()
			_ = a.Close()
			if err := <-read; err != io.EOF {
				t.Errorf("a waiting read got %v, want io.EOF", err)
			}
			if err := <-wrote; !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("a waiting write got %v", err)
			}
			if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a write after the own close got %v", err)
			}
			if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a read after the own close got %v", err)
			}
		})
	})
	t.Run("deadlines", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := memPipe()
			defer a.Close() //nolint:errcheck // it returns nil
			defer b.Close() //nolint:errcheck // it returns nil
			_ = a.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: %v", err)
			}
			_ = a.SetWriteDeadline(time.Now().Add(time.Second))
			if n, err := a.Write(make([]byte, memBufferBytes+1)); n != memBufferBytes || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("write: %d, %v", n, err)
			}
			_ = a.SetDeadline(time.Time{})
			_, _ = b.Write([]byte("x"))
			if _, err := a.Read(make([]byte, 1)); err != nil {
				t.Errorf("read without a deadline: %v", err)
			}
		})
	})
}

// A broker without a socket serves its clients, and leaves nothing running.
func TestInProcessListener(t *testing.T) {
	door := NewInProcess()
	b := startBroker(t, Config{Listener: door})
	connect := func() *peer {
		conn, err := door.Dial(context.Background(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return (&peer{t: t, conn: conn}).hello()
	}
	pub, sub := connect(), connect()
	pub.create("orders", codec.TopicSettings{})
	pub.open(1, "orders", 0, 1)
	sub.subscribe(1, codec.Subscribe{Topic: "orders", From: codec.FromEarliest, CreditBytes: 1 << 20})
	large := make([]byte, 900_000) // larger than the buffers
	pub.write(publishFrame(1, 1, 0, batchOf(large)))
	if r := pub.confirm(); r.Code != codec.CodeNone {
		t.Fatalf("refused: %v", r.Code)
	}
	if _, _, payload := sub.expect(codec.TypeDeliver); len(payload) < len(large) {
		t.Errorf("delivered %d bytes", len(payload))
	}
	if got := b.Addrs()[0].String(); got != "in-process" {
		t.Errorf("the address is %q", got)
	}
	_ = door.Close()
	if _, err := door.Dial(context.Background(), "", ""); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dialling a closed listener: %v", err)
	}
}
