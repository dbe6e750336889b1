package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
)

// printBufferBytes is what is collected of the output before it is written, while more records wait: as much as a pipe takes
// at once on systems that let it grow, and far above the cost of a system call.
const printBufferBytes = 256 << 10

// errNobodyReads ends the reader when its output was closed.
var errNobodyReads = errors.New("nobody reads the output any more")

// outputError tells a failure of standard output from one of the connection: both may be a broken pipe.
func outputError(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return errNobodyReads
	}
	return cli.Failf(cli.ExitFailure, "write output: %v", err)
}

// A printer writes records' values to standard output and knows when to stop.
type printer struct {
	topic string
	out   *bufio.Writer
	left  map[int]int64        // records to print of each partition; no entry: all
	begin map[int]codec.Offset // where each partition's subscription starts: a batch may begin before that
	ahead map[int]bool         // partitions whose end, or limit, was not reached yet
	atEnd bool                 // stop at the end

	records, bytes int64
}

// read prints records until its limits, the end, an interrupt, or the end of whoever reads the output.
func (f *consumerFlags) read(ctx context.Context, c *client.Client, start client.Start) error {
	signal.Ignore(syscall.SIGPIPE) // a write then says EPIPE
	co, err := c.Consumer(ctx, f.topic, client.From(start))
	if err != nil {
		if ctx.Err() != nil {
			return cli.ErrInterrupted
		}
		return f.explain(err)
	}
	p := &printer{
		topic: f.topic, out: bufio.NewWriterSize(os.Stdout, printBufferBytes), atEnd: f.atEnd,
		left: map[int]int64{}, begin: map[int]codec.Offset{}, ahead: map[int]bool{},
	}
	for _, pos := range co.Positions() {
		p.begin[pos.Partition] = pos.Begin
		if f.atEnd && pos.Next >= pos.High {
			continue
		}
		p.ahead[pos.Partition] = true
		if cli.Given(f.fs, "messages") {
			p.left[pos.Partition] = f.messages
		}
	}
	f.attached(co.Partitions())
	reading, end := context.WithCancelCause(ctx)
	defer end(nil)
	cli.WhenReaderGone(os.Stdout, func() { end(errNobodyReads) })
	err = p.print(reading, co)
	if ferr := p.out.Flush(); ferr != nil && err == nil {
		err = outputError(ferr)
	}
	switch {
	case errors.Is(err, errNobodyReads), errors.Is(context.Cause(reading), errNobodyReads):
		return nil
	case ctx.Err() != nil:
		err = cli.ErrInterrupted
	case err != nil:
		err = f.explain(err)
	}
	fmt.Fprintf(os.Stderr, "printed %s: %s, %s B\n", f.topic, cli.Plural(p.records, "record"), cli.Thousands(p.bytes))
	return err
}

func (p *printer) print(ctx context.Context, co *client.Consumer) error {
	if len(p.ahead) == 0 {
		return nil
	}
	for b, err := range co.Batches(ctx) {
		if err != nil {
			return err
		}
		if b.Gap != nil {
			fmt.Fprintf(os.Stderr, "gap in %s: %v\n", p.topic, &client.GapError{Partition: b.Partition, Gap: *b.Gap})
		}
		if b.Batch == nil {
			continue
		}
		if err := p.batch(b); err != nil {
			return err
		}
		caughtUp := b.NextOffset() >= b.High
		if caughtUp && p.atEnd {
			delete(p.ahead, b.Partition)
		}
		if len(p.ahead) == 0 {
			return nil
		}
		if caughtUp { // nothing more waits in this partition: let it be seen
			if err := p.out.Flush(); err != nil {
				return outputError(err)
			}
		}
	}
	return nil
}

// batch prints a batch's records, as far as the partition's limit goes.
func (p *printer) batch(b client.Batch) error {
	if c := b.Compression(); c != codec.CompressionNone {
		return cli.NotYet("the batch at offset %d of partition %d is compressed with codec %d, which this version cannot open", b.BaseOffset(), b.Partition, c)
	}
	begin := p.begin[b.Partition]
	left, limited := p.left[b.Partition]
	rs := b.Records()
	for rs.Next() {
		if rs.Record.Offset < begin {
			continue
		}
		if limited {
			if left == 0 {
				break
			}
			left--
		}
		_, _ = p.out.Write(rs.Record.Value) // a bufio.Writer keeps its error
		if err := p.out.WriteByte('\n'); err != nil {
			return outputError(err)
		}
		p.records++
		p.bytes += int64(len(rs.Record.Value))
	}
	if limited {
		p.left[b.Partition] = left
		if left == 0 {
			delete(p.ahead, b.Partition)
		}
	}
	return rs.Err()
}
