package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/internal/cli"
)

// Lines publishes the lines of a stream, each as one record without its newline, to the partitions in turn. A carriage
// return stays part of the record, and every byte but the newline is data. A last line without a newline is a line.
type Lines struct {
	topic      string
	partitions int
	maxBatch   int
	largest    int // bytes of the largest line that the topic takes

	published atomic.Int64
	bytes     atomic.Int64
	confirmed atomic.Int64
	failed    atomic.Int64

	number int64 // of lines taken
	total  int64 // their bytes
}

// NewLines returns a publisher of lines for a topic whose largest batch is maxBatch bytes.
func NewLines(topic string, partitions, maxBatch int) *Lines {
	return &Lines{topic: topic, partitions: partitions, maxBatch: maxBatch, largest: LargestRecord(maxBatch)}
}

// OnBatch counts what became of a batch; it is an argument for client.OnBatch.
func (l *Lines) OnBatch(r client.BatchResult) {
	if r.Err == nil {
		l.confirmed.Add(int64(r.Records))
	} else {
		l.failed.Add(int64(r.Records))
	}
}

// Counts returns how many lines were published, confirmed and refused, and the bytes of those published. It may be called
// from any goroutine.
func (l *Lines) Counts() (published, confirmed, failed, bytes int64) {
	return l.published.Load(), l.confirmed.Load(), l.failed.Load(), l.bytes.Load()
}

const lineChunkBytes = 256 << 10

type chunk struct {
	data []byte
	err  error
}

// Publish publishes the lines of in until its end, an error, or the end of ctx, and waits for the confirms of what it has
// published. A line that is too long for the topic ends it: the lines before are published.
//
// in is read on a goroutine of its own, because a read of a terminal or pipe cannot be interrupted; where ctx ends first, that
// goroutine ends with its read.
func (l *Lines) Publish(ctx context.Context, in io.Reader, p Publisher) error {
	err := l.publish(ctx, in, p)
	l.published.Store(l.number)
	l.bytes.Store(l.total)
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

func (l *Lines) publish(ctx context.Context, in io.Reader, p Publisher) error {
	free, full := make(chan []byte, 2), make(chan chunk)
	stop := make(chan struct{})
	defer close(stop)
	free <- make([]byte, lineChunkBytes)
	free <- make([]byte, lineChunkBytes)
	go readChunks(in, free, full, stop)
	var carry []byte // the beginning of a line whose end was not read yet
	for {
		var c chunk
		select {
		case c = <-full:
		case <-ctx.Done():
			return ctx.Err()
		}
		rest := c.data
		for {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				break
			}
			line := rest[:end]
			if len(carry) > 0 {
				carry = append(carry, line...)
				line = carry
			}
			if err := l.line(ctx, p, line); err != nil {
				return err
			}
			carry, rest = carry[:0], rest[end+1:]
		}
		if carry = append(carry, rest...); len(carry) > l.largest {
			return l.tooLong(len(carry), true)
		}
		l.published.Store(l.number)
		l.bytes.Store(l.total)
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

func (l *Lines) line(ctx context.Context, p Publisher, line []byte) error {
	if len(line) > l.largest {
		return l.tooLong(len(line), false)
	}
	if line == nil {
		line = []byte{} // an empty record, not a null one
	}
	partition := int(l.number % int64(l.partitions))
	if err := p.PublishValue(ctx, partition, line); err != nil {
		return err
	}
	l.number++
	l.total += int64(len(line))
	return nil
}

func (l *Lines) tooLong(n int, more bool) error {
	size := cli.Thousands(int64(n)) + " B"
	if more {
		size += " and more"
	}
	return &cli.Error{
		Exit: cli.ExitFailure,
		Text: fmt.Sprintf("line %d has %s, above what topic %s takes in one record, %s B (max-batch %d)",
			l.number+1, size, l.topic, cli.Thousands(int64(l.largest)), l.maxBatch),
		Fix: "create a topic with a larger --max-batch",
	}
}
