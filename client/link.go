package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
)

const (
	controlBufferBytes = 16 << 10 // replies and confirms are small
	// fallbackFrameBytes bounds frames from a broker that did not say how large its frames get.
	fallbackFrameBytes = codec.DefaultMaxBatchBytes + 64<<10
	// silentIntervals without a byte from the broker mean that it is gone.
	silentIntervals = 3
)

// A link is one connection that has said hello. Frames may be written by any goroutine; they are read by one: the
// goroutine run (control connection and producers), or whoever iterates (consumers).
type link struct {
	nc     net.Conn
	rw     io.ReadWriter // nc, or what does the same for less
	addr   string
	log    *slog.Logger
	limits codec.Hello // the broker's reply
	frames frameReader // the reader's

	// wmu is held while a frame is written, also while the socket is full. The reader never takes it: a broker that
	// waits for us to read its confirms would wait for ever.
	wmu    sync.Mutex
	writes atomic.Uint32 // frames written, for the heartbeat

	reading atomic.Bool   // a Read is under way
	reads   atomic.Uint32 // Reads that returned

	mu    sync.Mutex
	calls map[uint32]func(reply) // requests without a reply yet, by correlation id
	corr  uint32
	err   error            // why the connection is dead; set once
	away  *codec.WireError // the broker said that it will close, and why

	dead chan struct{} // closed when err is set
	wg   sync.WaitGroup
}

// A reply is what a request got: views of the reader's buffer, or an error.
type reply struct {
	header, payload []byte
	err             error
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialLink connects and exchanges hellos. No goroutine runs yet.
func dialLink(ctx context.Context, dial dialFunc, network, addr, name string, log *slog.Logger) (*link, error) {
	nc, err := dial(ctx, network, addr)
	if err != nil {
		return nil, &ConnError{Op: "dial", Addr: addr, Err: err}
	}
	l := &link{nc: nc, rw: socketOf(nc), addr: addr, log: log, calls: map[uint32]func(reply){}, dead: make(chan struct{})}
	l.frames = frameReader{
		src: l, max: codec.MaxLoginFrameBytes, target: controlBufferBytes, buf: make([]byte, controlBufferBytes),
	}
	err = l.within(ctx, func() error { return l.hello(name) })
	if err != nil {
		_ = nc.Close() // the error that counts is the first
		return nil, &ConnError{Op: "hello", Addr: addr, Err: err}
	}
	return l, nil
}

// within runs f, which reads and writes the socket, and makes it fail when ctx ends.
func (l *link) within(ctx context.Context, f func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = l.nc.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() && ctx.Err() != nil {
		// The deadline may be set only now, so the connection is of no use any more even if f was just in time.
		return ctx.Err()
	}
	return err
}

func (l *link) hello(name string) error {
	const corr = 1
	l.corr = corr
	if _, err := l.nc.Write(codec.AppendHello(nil, corr, false, codec.Hello{
		MinVersion: codec.MinVersion, MaxVersion: codec.Version, Name: name,
	})); err != nil {
		return err
	}
	for {
		h, header, _, err := l.frames.next()
		if err != nil {
			return told(err)
		}
		switch h.Type {
		case codec.TypeHello:
			l.limits, err = codec.ParseHello(header)
			if err != nil {
				return err
			}
			if h.Flags&codec.FlagReply == 0 || h.Correlation != corr {
				return codec.Errorf(codec.CodeMalformedFrame, "the hello is not a reply to ours")
			}
			if v := l.limits.MaxVersion; v < codec.MinVersion || v > codec.Version || l.limits.MinVersion != v {
				return codec.Errorf(codec.CodeUnsupportedVersion, "the broker chose version %d", v)
			}
			l.frames.max = int(l.limits.MaxFrameBytes)
			if l.frames.max == 0 {
				l.frames.max = fallbackFrameBytes
			}
			return nil
		case codec.TypeError:
			wire, err := codec.ParseError(header)
			if err != nil {
				return err
			}
			return wire
		case codec.TypeGoAway:
			m, err := codec.ParseGoAway(header)
			if err != nil {
				return err
			}
			return &codec.WireError{Code: m.Code, Detail: m.Reason}
		case codec.TypeHeartbeat:
		default:
			return codec.Errorf(codec.CodeHelloExpected, "the broker answered hello with a frame of type %s", h.Type)
		}
	}
}

// told makes the end of the stream readable.
func told(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the broker closed the connection: %w", io.EOF)
	}
	return err
}

// Read reads from the socket and leaves a trace for the heartbeat goroutine.
func (l *link) Read(p []byte) (int, error) {
	l.reading.Store(true)
	n, err := l.rw.Read(p)
	l.reads.Add(1)
	l.reading.Store(false)
	return n, err
}

// write writes whole frames. It may block while the socket is full. An error is the link's.
func (l *link) write(frames []byte) error {
	l.wmu.Lock()
	_, err := l.rw.Write(frames)
	l.wmu.Unlock()
	if err != nil {
		l.fail("write", err)
		return l.cause()
	}
	l.writes.Add(1)
	return nil
}

// fail makes err the reason of the link's end, unless it has one, and closes the socket. The reader then finishes.
func (l *link) fail(op string, err error) {
	l.mu.Lock()
	if l.err == nil {
		err = told(err)
		if l.away != nil && !errors.Is(err, ErrClosed) {
			err = l.away // the broker had said why
		}
		if errors.Is(err, ErrClosed) {
			l.err = ErrClosed
		} else {
			l.err = &ConnError{Op: op, Addr: l.addr, Err: err}
		}
		close(l.dead)
	}
	l.mu.Unlock()
	_ = l.nc.Close() // a second close, and an error of closing, change nothing
}

// cause returns why the link is dead, nil if it is not.
func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// usable reports whether the link works and its broker has not said that it will close it.
func (l *link) usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err == nil && l.away == nil
}

// close ends the link and waits for its goroutines.
func (l *link) close() {
	l.fail("close", ErrClosed)
	l.wg.Wait()
}

// A handler takes what a link's reader does not deal with itself. Its methods are called on the reader goroutine.
type handler interface {
	frame(h codec.Header, header, payload []byte) error // an error is fatal for the link
	goingAway(reason *codec.WireError)
	down(err error) // the last call
}

// start starts the reader and the heartbeat. They end when the link is dead.
func (l *link) start(to handler) {
	l.wg.Add(1)
	go l.run(to)
	l.startHeartbeat()
}

func (l *link) run(to handler) {
	defer l.wg.Done()
	for {
		h, header, payload, err := l.frames.next()
		if err == nil {
			err = l.dispatch(h, header, payload, to)
		}
		if err != nil {
			l.fail("read", err)
			break
		}
	}
	err := l.cause()
	l.mu.Lock()
	calls := l.calls
	l.calls = nil
	l.mu.Unlock()
	for _, done := range calls {
		done(reply{err: err})
	}
	to.down(err)
}

func (l *link) dispatch(h codec.Header, header, payload []byte, to handler) error {
	if done, err := l.common(h, header); done || err != nil {
		if h.Type == codec.TypeGoAway && err == nil {
			to.goingAway(l.away) // set by this goroutine only
		}
		return err
	}
	if h.Flags&codec.FlagReply != 0 && h.Correlation != 0 {
		l.mu.Lock()
		done := l.calls[h.Correlation]
		delete(l.calls, h.Correlation)
		l.mu.Unlock()
		if done == nil {
			return nil // whoever asked has given up
		}
		r := reply{header: header, payload: payload}
		if h.Type == codec.TypeError {
			wire, err := codec.ParseError(header)
			if err != nil {
				return err
			}
			r = reply{err: wire}
		}
		done(r)
		return nil
	}
	return to.frame(h, header, payload)
}

// common deals with the frames that mean the same on every connection and reports whether this was one.
func (l *link) common(h codec.Header, header []byte) (done bool, err error) {
	switch h.Type {
	case codec.TypeHeartbeat:
		return true, nil
	case codec.TypeGoAway:
		m, err := codec.ParseGoAway(header)
		if err != nil {
			return true, err
		}
		l.mu.Lock()
		l.away = &codec.WireError{Code: m.Code, Detail: m.Reason}
		l.mu.Unlock()
		l.log.Info("broker is going away", "conn", l.addr, "code", m.Code.String(), "reason", m.Reason)
		return true, nil
	case codec.TypeError:
		if h.Handle != 0 || h.Correlation != 0 {
			return false, nil
		}
		wire, err := codec.ParseError(header)
		if err != nil {
			return true, err
		}
		return true, wire
	case codec.TypeHello, codec.TypeCreate, codec.TypeDescribe, codec.TypeOpen, codec.TypeConfirm, codec.TypeSubscribe,
		codec.TypeDeliver, codec.TypeClose, codec.TypeList, codec.TypeAlter, codec.TypeDelete, codec.TypePurge,
		codec.TypeStats, codec.TypeFetch, codec.TypeProducer:
		return false, nil
	}
	if h.Flags&codec.FlagIgnorable != 0 {
		return true, nil
	}
	return true, codec.Errorf(codec.CodeUnknownFrame, "the broker sent a frame of type %s", h.Type)
}

// expect registers done for a reply and returns the request's correlation id. done is called once, on the reader
// goroutine; the slices of the reply are views.
func (l *link) expect(done func(reply)) (uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, l.err
	}
	if l.calls == nil {
		return 0, ErrClosed
	}
	l.corr++
	if l.corr == 0 {
		l.corr = 1
	}
	l.calls[l.corr] = done
	return l.corr, nil
}

func (l *link) forget(corr uint32) {
	l.mu.Lock()
	delete(l.calls, corr)
	l.mu.Unlock()
}

// call sends the request that build appends, and waits for its reply. The reply's slices are copies.
func (l *link) call(ctx context.Context, build func(dst []byte, corr uint32) []byte) (header, payload []byte, err error) {
	got := make(chan reply, 1)
	corr, err := l.expect(func(r reply) {
		r.header, r.payload = append([]byte(nil), r.header...), append([]byte(nil), r.payload...)
		got <- r
	})
	if err != nil {
		return nil, nil, err
	}
	if err := l.write(build(nil, corr)); err != nil {
		l.forget(corr)
		return nil, nil, err
	}
	select {
	case r := <-got:
		return r.header, r.payload, r.err
	case <-ctx.Done():
		l.forget(corr)
		return nil, nil, ctx.Err()
	}
}

// startHeartbeat starts the goroutine that sends heartbeats and notices a silent broker.
func (l *link) startHeartbeat() {
	if l.limits.HeartbeatMillis == 0 {
		return // the broker does not want any
	}
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		l.beat(time.Duration(l.limits.HeartbeatMillis) * time.Millisecond)
	}()
}

// beat looks twice per interval, so that at most one interval passes between two frames. Silence only counts while
// somebody reads: bytes that wait for a consumer that is busy are no silence.
func (l *link) beat(interval time.Duration) {
	tick := time.NewTicker(max(interval/2, time.Millisecond))
	defer tick.Stop()
	frame := codec.AppendHeartbeat(nil)
	lastWrites, lastReads, silent := l.writes.Load(), l.reads.Load(), 0
	for {
		select {
		case <-l.dead:
			return
		case <-tick.C:
		}
		if n := l.reads.Load(); n != lastReads || !l.reading.Load() {
			lastReads, silent = n, 0
		} else if silent++; silent >= 2*silentIntervals {
			l.fail("read", codec.Errorf(codec.CodeHeartbeatTimeout,
				"nothing was heard from the broker for %v", silentIntervals*interval))
			return
		}
		if n := l.writes.Load(); n != lastWrites {
			lastWrites = n
			continue
		}
		if l.wmu.TryLock() { // else a frame is on its way already
			_ = l.nc.SetWriteDeadline(time.Now().Add(silentIntervals * interval))
			_, err := l.nc.Write(frame)
			_ = l.nc.SetWriteDeadline(time.Time{})
			l.wmu.Unlock()
			if err != nil {
				l.fail("write", err)
				return
			}
		}
	}
}

// isTimeout reports whether err is a deadline that this package set.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
