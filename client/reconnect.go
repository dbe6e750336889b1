package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// DefaultReconnectMin and DefaultReconnectMax bound the pauses between attempts to make a lost connection anew.
	DefaultReconnectMin = 50 * time.Millisecond
	DefaultReconnectMax = 5 * time.Second

	// While a broker stays away, its absence is logged once in this time for each connection.
	absenceLogInterval = time.Minute
)

// A Role says what a connection is for.
type Role string

// The roles.
const (
	RoleAdmin    Role = "admin"
	RoleProducer Role = "producer"
	RoleConsumer Role = "consumer"
)

// A ConnState says what happened to a connection.
type ConnState string

// The states.
const (
	ConnLost   ConnState = "lost"   // it worked until now; Err says why it ended
	ConnFailed ConnState = "failed" // an attempt to make it anew failed
	ConnMade   ConnState = "made"   // it is there again
)

// A ConnEvent tells about one of a client's connections.
type ConnEvent struct {
	Role    Role
	Topic   string // of the producer or consumer
	State   ConnState
	Addr    string        // of the broker that was lost, or that is connected now
	Attempt int           // since the connection was lost, from 1; of ConnFailed and ConnMade
	Next    time.Duration // of ConnFailed: the pause before the next attempt; 0: there will be none
	Err     error         // of ConnLost and ConnFailed
}

// WithReconnect sets how long to wait before a lost connection is made anew. The pause doubles with every attempt from least
// to most, and the real one is a random part, at least half, of that; it starts anew when a connection has held for most.
// The defaults are DefaultReconnectMin and DefaultReconnectMax.
func WithReconnect(least, most time.Duration) Option {
	return func(c *Client) { c.again.least, c.again.most = least, most }
}

// WithReconnectLimit makes producers and consumers give up when a connection could not be made anew within d of its loss.
// The default 0 means that they never do.
func WithReconnectLimit(d time.Duration) Option { return func(c *Client) { c.again.limit = d } }

// WithoutReconnect makes the loss of its connection the end of a producer or consumer: what they return from then on is
// the *ConnError. The connection for administration is still made anew with the next request, in one attempt.
func WithoutReconnect() Option { return func(c *Client) { c.again.never = true } }

// WithOnConn makes the client call f when a connection is lost, when an attempt to make it anew fails, and when it is there
// again. f is called from goroutines of the package, one at a time for each connection; it must not block, and must not
// call the client or what the client has made.
func WithOnConn(f func(ConnEvent)) Option { return func(c *Client) { c.onConn = f } }

// An againConfig says how lost connections are made anew.
type againConfig struct {
	least, most time.Duration
	limit       time.Duration // 0: none
	never       bool
}

func (a againConfig) check() error {
	if a.least <= 0 || a.most < a.least {
		return fmt.Errorf("pauses from %v to %v before reconnecting: want 0 < least <= most", a.least, a.most)
	}
	if a.limit < 0 {
		return fmt.Errorf("the limit of %v for reconnecting is negative", a.limit)
	}
	return nil
}

// pause is the time to wait before an attempt, counted from 0: random, so that the clients of a broker that was
// restarted do not come all at once.
func (a againConfig) pause(attempt int) time.Duration {
	d := a.most
	if attempt < 62 && a.least <= a.most>>attempt {
		d = a.least << attempt
	}
	return d/2 + rand.N(d-d/2) + 1
}

// A comeback makes one lost connection anew, again and again. One goroutine at a time.
type comeback struct {
	client *Client
	role   Role
	topic  string

	attempt int       // that the back-off is at
	due     time.Time // when it may be made: pauses go on between calls whose contexts are shorter
	made    time.Time // when the connection was made
	away    bool      // it is lost, and that has been told
	lost    time.Time // when
	failed  int       // attempts since
	last    error     // why the last attempt failed; before the first, why the connection was lost
	logged  time.Time // when its absence was logged last
}

func (c *Client) comeback(role Role, topic string) comeback {
	return comeback{client: c, role: role, topic: topic, made: time.Now()}
}

// run calls try, after a pause each time, until it returns nil. It gives up when ctx ends, with ctx's error; when the limit has
// passed; and when an error does not allow another attempt. cause says why the connection at addr was lost.
func (b *comeback) run(ctx context.Context, addr string, cause error, try func(ctx context.Context) (addr string, err error)) error {
	again := b.client.again
	if !b.away {
		b.away, b.lost, b.failed, b.last = true, time.Now(), 0, cause
		if b.lost.Sub(b.made) >= again.most {
			b.attempt = 0
		}
		b.tell(ConnEvent{State: ConnLost, Addr: addr, Err: cause})
		b.log().Warn("connection lost", "conn", addr, "err", cause)
		b.logged = b.lost
		b.due = b.lost.Add(again.pause(b.attempt))
	}
	for {
		wait := max(time.Until(b.due), 0)
		if again.limit > 0 {
			wait = min(wait, max(again.limit-time.Since(b.lost), 0))
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		b.attempt++
		addr, err := b.once(ctx, try)
		if ctx.Err() != nil {
			if err == nil {
				b.back(addr)
				return nil
			}
			return ctx.Err()
		}
		if err == nil {
			b.back(addr)
			return nil
		}
		b.failed++
		b.last = err
		over := again.limit > 0 && time.Since(b.lost) >= again.limit
		if over || !Retryable(err) {
			b.tell(ConnEvent{State: ConnFailed, Attempt: b.failed, Err: err})
			b.log().Error("given up on the connection", "attempts", b.failed, "err", err)
			return err
		}
		pause := again.pause(b.attempt)
		b.due = time.Now().Add(pause)
		b.tell(ConnEvent{State: ConnFailed, Attempt: b.failed, Next: pause, Err: err})
		if b.failed == 1 || time.Since(b.logged) >= absenceLogInterval {
			b.logged = time.Now()
			b.log().Warn("cannot reconnect", "attempts", b.failed, "next", pause, "err", err)
		}
	}
}

// once is one attempt, within the client's timeout.
func (b *comeback) once(ctx context.Context, try func(ctx context.Context) (string, error)) (addr string, err error) {
	bounded, cancel := context.WithTimeout(ctx, b.client.timeout)
	defer cancel()
	addr, err = try(bounded)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		var ce *ConnError
		if !errors.As(err, &ce) { // a request that got no answer
			err = &ConnError{Op: "read", Addr: addr, Err: err}
		}
	}
	return addr, err
}

func (b *comeback) back(addr string) {
	b.away, b.made = false, time.Now()
	b.tell(ConnEvent{State: ConnMade, Addr: addr, Attempt: b.failed + 1})
	b.log().Info("connected again", "conn", addr, "attempts", b.failed+1)
}

func (b *comeback) tell(e ConnEvent) {
	if f := b.client.onConn; f != nil {
		e.Role, e.Topic = b.role, b.topic
		f(e)
	}
}

func (b *comeback) log() *slog.Logger {
	l := b.client.log.With("role", string(b.role))
	if b.topic != "" {
		l = l.With("topic", b.topic)
	}
	return l
}
