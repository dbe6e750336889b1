//go:build !386 && !s390x

package client

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lightio/lightq/internal/invariant"
)

// socketPair returns both ends of a connection.
func socketPair(t testing.TB, network string) (here, there net.Conn) {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "s")
	}
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if here, err = net.Dial(network, ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if there, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	return here, there
}

// A raw socket does what the connection does, its errors included.
func TestRawSocket(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			here, there := socketPair(t, network)
			rw := newRawSocket(here)
			if _, ok := rw.(*rawSocket); !ok {
				t.Fatalf("it is a %T", rw)
			}
			// More than the kernel takes at once, both ways.
			want := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
			go func() { _, _ = io.Copy(there, there) }()
			var writing sync.WaitGroup
			writing.Go(func() {
				if n, err := rw.Write(want); n != len(want) || err != nil {
					t.Errorf("wrote %d of %d: %v", n, len(want), err)
				}
			})
			got := make([]byte, len(want))
			if _, err := io.ReadFull(rw, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("read back: equal %v, %v", bytes.Equal(got, want), err)
			}
			writing.Wait()
			if n, err := rw.Read(nil); n != 0 || err != nil {
				t.Errorf("a read of nothing: %d, %v", n, err)
			}

			same := func(what string, how func(io.ReadWriter) error, is error) {
				t.Helper()
				raw, plain := how(rw), how(here)
				if raw == nil || plain == nil || raw.Error() != plain.Error() || !errors.Is(raw, is) {
					t.Errorf("%s: %v, without: %v", what, raw, plain)
				}
			}
			read := func(rw io.ReadWriter) error { _, err := rw.Read(got); return err }
			write := func(rw io.ReadWriter) error { _, err := rw.Write(want); return err }
			_ = here.SetDeadline(time.Unix(1, 0))
			same("a read behind the deadline", read, os.ErrDeadlineExceeded)
			same("a write behind the deadline", write, os.ErrDeadlineExceeded)
			_ = here.SetDeadline(time.Time{})
			_ = there.Close()
			same("the end", read, io.EOF)
			for write(rw) == nil { // until the kernel knows
				runtime.Gosched()
			}
			if err := write(rw); !strings.HasSuffix(err.Error(), "write: broken pipe") {
				t.Errorf("a write to nobody: %v", err)
			}
			_ = here.Close()
			same("a read of a closed one", read, net.ErrClosed)
			same("a write to a closed one", write, net.ErrClosed)
		})
	}
}

// What waits in a raw socket ends with the deadline, and with a close.
func TestRawSocketWaits(t *testing.T) {
	here, there := socketPair(t, "tcp")
	rw := newRawSocket(here)
	// Somebody who shares the descriptor may have made it one that blocks.
	raw, err := here.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = here.SetReadDeadline(time.Now().Add(time.Millisecond))
	b, got := make([]byte, 1<<20), make([]byte, 1<<20)
	if _, err := rw.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read that waits: %v", err)
	}
	_ = here.SetReadDeadline(time.Time{})
	ended := make(chan error, 2)
	go func() { _, err := rw.Read(make([]byte, 1)); ended <- err }()
	go func() {
		for {
			if _, err := rw.Write(b); err != nil {
				ended <- err
				return
			}
		}
	}()
	if _, err := io.ReadFull(there, got); err != nil { // the writer is at work
		t.Error(err)
	}
	_ = here.Close()
	for range 2 {
		select {
		case err := <-ended:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("at the close: %v", err)
			}
		case <-time.After(patience):
			t.Fatal("somebody still waits behind the close")
		}
	}
}

// A connection that wraps a socket is read and written as it wants.
func TestWrappedSocket(t *testing.T) {
	here, _ := socketPair(t, "tcp")
	wrapped := struct{ *net.TCPConn }{here.(*net.TCPConn)}
	if rw := newRawSocket(wrapped); rw != io.ReadWriter(wrapped) {
		t.Errorf("it is a %T", rw)
	}
}

func TestRawSocketAllocatesNothing(t *testing.T) {
	if invariant.Enabled {
		t.Skip("the race detector and the invariants allocate")
	}
	here, there := socketPair(t, "tcp")
	rw, other := newRawSocket(here), newRawSocket(there)
	b := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		_, _ = rw.Write(b)
		_, _ = other.Read(b)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
