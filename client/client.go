package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/lightio/lightq/codec"
)

// defaultTimeout bounds requests whose context has no deadline.
const defaultTimeout = 10 * time.Second

// A Client makes producers and consumers and administers topics. All methods may be called from any goroutine.
type Client struct {
	brokers []address // in the order in which they are tried
	name    string
	dialer  dialFunc
	log     *slog.Logger
	timeout time.Duration
	again   againConfig
	onConn  func(ConnEvent)

	// The connection for administration, made anew when it was lost. controlTurn holds one element while somebody uses
	// what is below it.
	controlTurn chan struct{}
	control     *link
	comingBack  comeback

	closing context.Context // ends when Close is called
	close   context.CancelFunc

	mu       sync.Mutex
	closed   bool
	children map[child]struct{}
}

// An address is that of one broker.
type address struct{ network, addr string }

// A child is a Producer or Consumer.
type child interface{ closeWithClient(context.Context) error }

// An Option changes how Dial makes a Client.
type Option func(*Client)

// WithDialer makes every connection by calling dial instead of net.Dialer: network is "tcp" or "unix", addr the
// host:port or path. Deadlines must work on what it returns.
func WithDialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) Option {
	return func(c *Client) { c.dialer = dial }
}

// WithName sets the program name and version that the broker logs. The default is "lightq-go".
func WithName(name string) Option { return func(c *Client) { c.name = name } }

// WithLogger makes the client log what nobody gets as an error: a broker that is going away, a handle that was
// reopened. The default discards.
func WithLogger(log *slog.Logger) Option { return func(c *Client) { c.log = log } }

// WithTimeout bounds dialling and requests whose context has no deadline. The default is 10 s. Publishing, flushing and
// consuming have no such bound.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// Dial connects to a broker and exchanges hellos. addr is "tcp://host:port", "host:port" or "unix:///path", or several of
// them with commas between. This and every later connection tries them in their order, from the first, and takes the one
// that answers; where several are left, none takes more than its share of the time. The error names each with its reason. Dial
// itself does not try again; what is lost later comes back as the package comment says.
func Dial(ctx context.Context, addr string, opts ...Option) (*Client, error) {
	brokers, err := splitAddrs(addr)
	if err != nil {
		return nil, err
	}
	c := &Client{
		brokers: brokers, name: "lightq-go", timeout: defaultTimeout, controlTurn: make(chan struct{}, 1),
		again:  againConfig{least: DefaultReconnectMin, most: DefaultReconnectMax},
		dialer: (&net.Dialer{}).DialContext, log: slog.New(slog.DiscardHandler), children: map[child]struct{}{},
	}
	for _, o := range opts {
		o(c)
	}
	if err := c.again.check(); err != nil {
		return nil, err
	}
	c.closing, c.close = context.WithCancel(context.Background())
	ctx, cancel := c.bound(ctx)
	defer cancel()
	l, err := c.dial(ctx)
	if err != nil {
		c.close()
		return nil, err
	}
	l.start(control{})
	c.control, c.comingBack = l, c.comeback(RoleAdmin, "")
	return c, nil
}

func splitAddrs(list string) ([]address, error) {
	var all []address
	for addr := range strings.SplitSeq(list, ",") {
		network, host, err := splitAddr(strings.TrimSpace(addr))
		if err != nil {
			return nil, err
		}
		all = append(all, address{network, host})
	}
	return all, nil
}

func splitAddr(addr string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(addr, "://")
	if !ok {
		scheme, rest = "tcp", addr
	}
	switch scheme {
	case "tcp":
		if _, port, err := net.SplitHostPort(rest); err != nil || port == "" {
			return "", "", fmt.Errorf("broker address %q: want tcp://host:port, host:port or unix:///path", addr)
		}
	case "unix":
		if rest == "" {
			return "", "", fmt.Errorf("broker address %q: the path is missing; want unix:///path", addr)
		}
	default:
		return "", "", fmt.Errorf("broker address %q: the scheme %q is unknown; want tcp or unix", addr, scheme)
	}
	return scheme, rest, nil
}

// bound gives ctx the client's timeout if it has no deadline.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// dial makes a connection to the first broker that answers.
func (c *Client) dial(ctx context.Context) (*link, error) {
	if len(c.brokers) == 1 {
		return c.dialOne(ctx, c.brokers[0])
	}
	var failed dialErrors
	for i, a := range c.brokers {
		share, cancel := ctx, func() {}
		if end, ok := ctx.Deadline(); ok {
			share, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(c.brokers)-i))
		}
		l, err := c.dialOne(share, a)
		cancel()
		if err == nil {
			return l, nil
		}
		failed = append(failed, err)
	}
	return nil, failed
}

func (c *Client) dialOne(ctx context.Context, a address) (*link, error) {
	return dialLink(ctx, c.dialer, a.network, a.addr, c.name, c.log)
}

// controlLink returns the control connection. If that was lost it makes a new one, again and again until ctx ends.
func (c *Client) controlLink(ctx context.Context) (*link, error) {
	select {
	case c.controlTurn <- struct{}{}:
		defer func() { <-c.controlTurn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.closing.Done():
		return nil, ErrClosed
	}
	if c.closing.Err() != nil {
		return nil, ErrClosed
	}
	cause := c.control.cause()
	if cause == nil {
		return c.control, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()
	var made *link
	try := func(ctx context.Context) (addr string, err error) {
		if made, err = c.dial(ctx); err != nil {
			return "", err
		}
		return made.addr, nil
	}
	var err error
	if c.again.never {
		_, err = try(ctx)
	} else {
		err = c.comingBack.run(ctx, c.control.addr, cause, try)
	}
	switch {
	case c.closing.Err() != nil:
		if err == nil {
			made.close()
		}
		return nil, ErrClosed
	case err != nil && ctx.Err() != nil && c.comingBack.last != nil:
		return nil, fmt.Errorf("%w (%w)", ctx.Err(), c.comingBack.last)
	case err != nil:
		return nil, err
	}
	made.start(control{})
	c.control.close() // it is dead; wait for its goroutines
	c.control = made
	return made, nil
}

// control handles the control connection, where nothing but replies is expected.
type control struct{}

func (control) frame(h codec.Header, _, _ []byte) error {
	return codec.Errorf(codec.CodeUnknownHandle,
		"the broker sent a %s frame for handle %d, which is not open", h.Type, h.Handle)
}
func (control) goingAway(*codec.WireError) {}
func (control) down(error)                 {}

// call sends a request over the control connection and waits for its reply.
func (c *Client) call(ctx context.Context, build func(dst []byte, corr uint32) []byte) (header, payload []byte, err error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	l, err := c.controlLink(ctx)
	if err != nil {
		return nil, nil, err
	}
	return l.call(ctx, build)
}

// ask is call for a request that changes nothing: it is sent again when the connection was lost before the reply.
func (c *Client) ask(ctx context.Context, build func(dst []byte, corr uint32) []byte) (header, payload []byte, err error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	for {
		l, err := c.controlLink(ctx)
		if err != nil {
			return nil, nil, err
		}
		header, payload, err = l.call(ctx, build)
		var lost *ConnError
		if err == nil || c.again.never || ctx.Err() != nil || !errors.As(err, &lost) || !Retryable(err) {
			return header, payload, err
		}
	}
}

// adopt makes Close close ch too.
func (c *Client) adopt(ch child) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.children[ch] = struct{}{}
	return nil
}

func (c *Client) disown(ch child) {
	c.mu.Lock()
	delete(c.children, ch)
	c.mu.Unlock()
}

// Close closes the client's producers, consumers and connections. Producers are flushed first, for at most the client's
// timeout, also those that are waiting for their broker to come back; what that could not finish is in the error. Closing
// twice is closing once.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	children := make([]child, 0, len(c.children))
	for ch := range c.children {
		children = append(children, ch)
	}
	c.mu.Unlock()
	c.close()

	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	errs := make([]error, len(children))
	var wg sync.WaitGroup
	for i, ch := range children {
		wg.Go(func() { errs[i] = ch.closeWithClient(ctx) })
	}
	wg.Wait()
	c.controlTurn <- struct{}{}
	c.control.close()
	<-c.controlTurn
	return errors.Join(errs...)
}

// partitionNumbers returns what Partitions asked for, or all of a topic's count, after checking it against the count.
func partitionNumbers(topic string, asked []int, count int) ([]int, error) {
	if len(asked) == 0 {
		asked = make([]int, count)
		for i := range asked {
			asked[i] = i
		}
		return asked, nil
	}
	seen := make(map[int]bool, len(asked))
	for _, n := range asked {
		if n < 0 || n >= count {
			return nil, codec.Errorf(codec.CodeUnknownPartition,
				"topic %s has partitions 0 to %d, not %d", topic, count-1, n)
		}
		if seen[n] {
			return nil, fmt.Errorf("topic %s partition %d is named twice", topic, n)
		}
		seen[n] = true
	}
	return asked, nil
}
