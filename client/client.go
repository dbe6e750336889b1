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
	network, addr string
	name          string
	dialer        dialFunc
	log           *slog.Logger
	timeout       time.Duration

	controlMu sync.Mutex // held while the control connection is made
	control   *link      // for administration; made anew when it was lost

	mu       sync.Mutex
	closed   bool
	children map[child]struct{}
}

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

// Dial connects to a broker and exchanges hellos. addr is "tcp://host:port", "host:port" or "unix:///path".
func Dial(ctx context.Context, addr string, opts ...Option) (*Client, error) {
	network, address, err := splitAddr(addr)
	if err != nil {
		return nil, err
	}
	c := &Client{
		network: network, addr: address, name: "lightq-go", timeout: defaultTimeout,
		dialer: (&net.Dialer{}).DialContext, log: slog.New(slog.DiscardHandler), children: map[child]struct{}{},
	}
	for _, o := range opts {
		o(c)
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	if _, err := c.controlLink(ctx); err != nil {
		return nil, err
	}
	return c, nil
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

func (c *Client) dial(ctx context.Context) (*link, error) {
	return dialLink(ctx, c.dialer, c.network, c.addr, c.name, c.log)
}

// controlLink returns the control connection, and makes one if there is none that works.
func (c *Client) controlLink(ctx context.Context) (*link, error) {
	c.controlMu.Lock()
	defer c.controlMu.Unlock()
	if l := c.control; l != nil && l.cause() == nil {
		return l, nil
	}
	if c.isClosed() {
		return nil, ErrClosed
	}
	l, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	l.start(control{})
	if c.control != nil {
		c.control.close() // it is dead; wait for its goroutines
	}
	c.control = l
	return l, nil
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// control handles the control connection, where nothing but replies is expected.
type control struct{}

func (control) frame(h codec.Header, _, _ []byte) error {
	return codec.Errorf(codec.CodeUnknownHandle,
		"the broker sent a %s frame for handle %d, which is not open", h.Type, h.Handle)
}
func (control) goingAway(*codec.WireError) {}
func (control) down(error)                 {}

func (c *Client) call(ctx context.Context, build func(dst []byte, corr uint32) []byte) (header, payload []byte, err error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	l, err := c.controlLink(ctx)
	if err != nil {
		return nil, nil, err
	}
	return l.call(ctx, build)
}

// TopicSettings are what a topic is created with; zero values ask for the broker's defaults.
type TopicSettings = codec.TopicSettings

// CreateReply tells what stands after CreateTopic.
type CreateReply = codec.CreateReply

// Description tells a topic's settings and the state of its partitions.
type Description = codec.Description

// CreateTopic creates a topic. One that exists with the same settings is no error (Created is false then), with
// others it is codec.CodeTopicExists.
func (c *Client) CreateTopic(ctx context.Context, name string, s TopicSettings) (CreateReply, error) {
	header, _, err := c.call(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendCreate(dst, corr, codec.Create{Topic: name, Settings: s})
	})
	if err != nil {
		return CreateReply{}, fmt.Errorf("create topic %s: %w", name, err)
	}
	m, err := codec.ParseCreateReply(header)
	if err != nil {
		return CreateReply{}, fmt.Errorf("create topic %s: %w", name, err)
	}
	return m, nil
}

// Describe asks about a topic.
func (c *Client) Describe(ctx context.Context, topic string) (Description, error) {
	header, payload, err := c.call(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendDescribe(dst, corr, topic)
	})
	if err != nil {
		return Description{}, fmt.Errorf("describe topic %s: %w", topic, err)
	}
	m, err := codec.ParseDescription(header, payload)
	if err != nil {
		return Description{}, fmt.Errorf("describe topic %s: %w", topic, err)
	}
	return m, nil
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
// timeout; what that could not finish is in the error. Closing twice is closing once.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	children := make([]child, 0, len(c.children))
	for ch := range c.children {
		children = append(children, ch)
	}
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	errs := make([]error, len(children))
	var wg sync.WaitGroup
	for i, ch := range children {
		wg.Go(func() { errs[i] = ch.closeWithClient(ctx) })
	}
	wg.Wait()
	c.controlMu.Lock()
	if c.control != nil {
		c.control.close()
	}
	c.controlMu.Unlock()
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
