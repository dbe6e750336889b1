package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
)

// A LinePublisher is what Lines needs of a client.Producer.
type LinePublisher interface {
	Publisher
	PublishAsync(ctx context.Context, m client.Message, done func(client.Receipt, error)) error
	Err() error
}

// Lines publishes the lines of a stream, each as one record without its newline, to the partitions in turn. A carriage
// return stays part of the record, and every byte but the newline is data. A last line without a newline is a line. Another
// text may stand in place of the newline. What a record has beside its value, and what is null, the setters say; they are
// called before Publish.
type Lines struct {
	topic      string
	partitions int
	maxBatch   int
	largest    int // bytes of the largest line that the topic takes
	delim      []byte
	keyDelim   []byte // empty: lines have no keys
	key        []byte // of every line; nil: none
	null       []byte // what stands for null; nil: nothing does
	headers    []codec.RecordHeader
	headerSize int // of the headers in a record
	larger     func(batchBytes int) string

	published atomic.Int64
	bytes     atomic.Int64
	keyless   atomic.Int64
	confirmed atomic.Int64
	failed    atomic.Int64

	number int64 // of lines taken
	total  int64 // their bytes, without keys and what separates them
	plain  int64 // lines without a key
}

// NewLines returns a publisher of lines for a topic whose largest batch is maxBatch bytes. larger is the command that makes
// room for a larger one.
func NewLines(topic string, partitions, maxBatch int, larger func(batchBytes int) string) *Lines {
	return &Lines{
		topic: topic, partitions: partitions, maxBatch: maxBatch, largest: LargestRecord(maxBatch), headerSize: noHeaders,
		delim: []byte{'\n'}, larger: larger,
	}
}

// Delimit makes delim, which is not empty, the end of a line.
func (l *Lines) Delimit(delim []byte) { l.delim = delim }

// Keyed makes what stands before the first delim of a line its key, and what stands behind it its value; the key chooses the
// partition. A line without delim has no key.
func (l *Lines) Keyed(delim []byte) { l.keyDelim = delim }

// Key gives every line this key, which is not nil, in place of Keyed.
func (l *Lines) Key(key []byte) { l.key = key }

// Null makes a key or value that is exactly null, which is not nil, null.
func (l *Lines) Null(null []byte) { l.null = null }

// Headers gives every record these headers.
func (l *Lines) Headers(headers []codec.RecordHeader) {
	l.headers, l.headerSize = headers, headerBytes(headers)
}

// OnBatch counts what became of a batch; it is an argument for client.OnBatch.
func (l *Lines) OnBatch(r client.BatchResult) {
	switch {
	case r.Err == nil:
		l.confirmed.Add(int64(r.Records))
	case refused(r.Err):
		l.failed.Add(int64(r.Records))
	}
}

// Counts returns how many lines were published, confirmed and refused, and the bytes of those published. It may be called
// from any goroutine.
func (l *Lines) Counts() (published, confirmed, failed, bytes int64) {
	return l.published.Load(), l.confirmed.Load(), l.failed.Load(), l.bytes.Load()
}

// Keyless returns how many of the published lines had no key. It may be called from any goroutine.
func (l *Lines) Keyless() int64 { return l.keyless.Load() }

// took tells other goroutines how far it is.
func (l *Lines) took() {
	l.published.Store(l.number)
	l.bytes.Store(l.total)
	l.keyless.Store(l.plain)
}

const lineChunkBytes = 256 << 10

// lookEvery is how often it is looked whether the publisher still lives while no line comes: of a log that is followed none may
// come for hours.
const lookEvery = time.Second

type chunk struct {
	data []byte
	err  error
}

// Publish publishes the lines of in until its end, an error, or the end of ctx, and waits for the confirms of what it has
// published. A line that is too long for the topic ends it: the lines before are published.
//
// in is read on a goroutine of its own, because a read of a terminal or pipe cannot be interrupted; where ctx ends first, that
// goroutine ends with its read.
func (l *Lines) Publish(ctx context.Context, in io.Reader, p LinePublisher) error {
	err := l.publish(ctx, in, p)
	l.took()
	flush := ctx
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		flush, cancel = context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
		defer cancel()
	}
	if ferr := p.Flush(flush); err == nil {
		err = ferr
	}
	return err
}

func (l *Lines) publish(ctx context.Context, in io.Reader, p LinePublisher) error {
	free, full := make(chan []byte, 2), make(chan chunk)
	stop := make(chan struct{})
	defer close(stop)
	free <- make([]byte, lineChunkBytes)
	free <- make([]byte, lineChunkBytes)
	go readChunks(in, free, full, stop)
	var carry []byte // the beginning of a line whose end was not read yet
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		var c chunk
		select {
		case c = <-full:
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if err := p.Err(); err != nil {
				return err
			}
			continue
		}
		rest := c.data
		for {
			var line []byte
			var ok bool
			if line, rest, ok = l.cut(carry, rest); !ok {
				break
			}
			if err := l.line(ctx, p, line); err != nil {
				return err
			}
			carry = carry[:0]
		}
		carry = append(carry, rest...)
		if most := l.largest + len(l.keyDelim) + len(l.delim) - 1; len(carry) > most {
			return l.tooLong(len(carry), true, BatchBytes(len(carry)))
		}
		l.took()
		switch {
		case errors.Is(c.err, io.EOF):
			if len(carry) == 0 {
				return nil
			}
			return l.line(ctx, p, carry)
		case c.err != nil:
			return fmt.Errorf("read line %d: %w", l.number+1, c.err)
		}
		free <- c.data[:cap(c.data)]
	}
}

// cut returns the first line of carry and what follows it, rest, and what is left of rest behind its end. carry holds no end
// of a line, but may hold the beginning of one. The line is valid until carry or rest is written to.
func (l *Lines) cut(carry, rest []byte) (line, left []byte, ok bool) {
	if tail := min(len(carry), len(l.delim)-1); tail > 0 {
		// Does an end lie across?
		seam := append(slices.Clone(carry[len(carry)-tail:]), rest[:min(len(rest), len(l.delim)-1)]...)
		if at := bytes.Index(seam, l.delim); at >= 0 {
			return carry[:len(carry)-tail+at], rest[at+len(l.delim)-tail:], true
		}
	}
	end := bytes.Index(rest, l.delim)
	if end < 0 {
		return nil, rest, false
	}
	line, left = rest[:end], rest[end+len(l.delim):]
	if len(carry) > 0 {
		line = append(carry, line...)
	}
	return line, left, true
}

// readChunks reads in until its end, an error, or until stop is closed.
func readChunks(in io.Reader, free <-chan []byte, full chan<- chunk, stop <-chan struct{}) {
	for {
		var b []byte
		select {
		case b = <-free:
		case <-stop:
			return
		}
		n, err := in.Read(b)
		select {
		case full <- chunk{b[:n], err}:
		case <-stop:
			return
		}
		if err != nil {
			return
		}
	}
}

func (l *Lines) line(ctx context.Context, p LinePublisher, line []byte) error {
	m := client.Message{Partition: client.AnyPartition, Key: l.key, Value: line, Headers: l.headers}
	if len(l.keyDelim) > 0 {
		if key, value, ok := bytes.Cut(line, l.keyDelim); ok {
			m.Key, m.Value = l.orNull(notNil(key)), value
		}
	}
	m.Value = l.orNull(notNil(m.Value))
	if size := batchBytes(sizeOf(m.Key), sizeOf(m.Value), l.headerSize); size > l.maxBatch {
		return l.tooLong(len(line), false, size)
	}
	if m.Key == nil {
		m.Partition = int(l.plain % int64(l.partitions))
	}
	if err := l.message(ctx, p, m); err != nil {
		return err
	}
	if m.Key == nil {
		l.plain++
	}
	l.number++
	l.total += int64(len(m.Value))
	return nil
}

// message publishes one record: a value alone by the way that is made for that.
func (l *Lines) message(ctx context.Context, p LinePublisher, m client.Message) error {
	if m.Key == nil && m.Value != nil && len(m.Headers) == 0 {
		return p.PublishValue(ctx, m.Partition, m.Value)
	}
	return p.PublishAsync(ctx, m, nil)
}

// orNull returns nil for what stands for null.
func (l *Lines) orNull(b []byte) []byte {
	if l.null != nil && bytes.Equal(b, l.null) {
		return nil
	}
	return b
}

// notNil makes what is empty an empty key or value, not a null one.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// sizeOf is the size of a key or value, -1 for null.
func sizeOf(b []byte) int {
	if b == nil {
		return -1
	}
	return len(b)
}

// tooLong says that a line of n bytes, or more, does not fit: with it a batch would have batchBytes.
func (l *Lines) tooLong(n int, more bool, batchBytes int) error {
	size, largest := cli.Thousands(int64(n))+" B", l.largest
	if more {
		size += " and more"
	} else if len(l.headers) > 0 || len(l.key) > 0 || len(l.keyDelim) > 0 {
		largest = max(n-(batchBytes-l.maxBatch), 0)
	}
	return &cli.Error{
		Exit: cli.ExitFailure,
		Text: fmt.Sprintf("line %d has %s, above what topic %s takes in one record, %s B (max-batch %d)",
			l.number+1, size, l.topic, cli.Thousands(int64(largest)), l.maxBatch),
		Fix: l.larger(batchBytes),
	}
}
