package program

import (
	"bufio"
	"context"
	"errors"
	"iter"
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

// A printer writes records to standard output and knows when to stop.
type printer struct {
	topic string
	out   *bufio.Writer
	note  func(format string, args ...any) // a line on standard error
	form  form
	text  []byte               // of a record; reused
	left  map[int]int64        // records to print of each partition; no entry: all
	begin map[int]codec.Offset // where each partition's subscription starts: a batch may begin before that. None in a group
	since map[int]int64        // the time at which a partition's subscription starts, in ms, until its first record is found
	ahead map[int]bool         // partitions whose end, or limit, was not reached yet
	atEnd bool                 // stop at the end
	share bool                 // of a group: nobody tells it that what came last went to others

	records, bytes int64
}

// read prints records until its limits, the end, an interrupt, or the end of whoever reads the output.
func (f *consumerFlags) read(ctx context.Context, c *client.Client, start start, form form) error {
	signal.Ignore(syscall.SIGPIPE) // a write then says EPIPE
	co, err := c.Consumer(ctx, f.topic, f.options(start)...)
	if err != nil {
		if ctx.Err() != nil {
			return cli.ErrInterrupted
		}
		return f.explain(err)
	}
	p := &printer{
		topic: f.topic, note: f.note, form: form, out: bufio.NewWriterSize(os.Stdout, printBufferBytes), atEnd: f.atEnd, share: f.group != "",
		left: map[int]int64{}, begin: map[int]codec.Offset{}, since: map[int]int64{}, ahead: map[int]bool{},
	}
	positions := co.Positions()
	for _, pos := range positions {
		if f.group == "" {
			p.begin[pos.Partition] = pos.Begin
			if start.since != 0 {
				p.since[pos.Partition] = start.since
			}
			if f.atEnd && pos.Next >= pos.High {
				continue
			}
		}
		p.ahead[pos.Partition] = true
		if cli.Given(f.fs, "messages") {
			p.left[pos.Partition] = f.messages
		}
	}
	if some := f.attached(start, co.Partitions(), positions); !some && !f.atEnd {
		f.note("nothing is there yet: waiting for records (Ctrl-C ends this, -e would not wait)")
	}
	reading, end := context.WithCancelCause(ctx)
	defer end(nil)
	cli.WhenReaderGone(os.Stdout, func() { end(errNobodyReads) })
	if f.group != "" && f.atEnd {
		p.atEnd = false
		idle := newIdleEnd(reading)
		defer idle.stop()
		err = idle.through(p.print(idle.watch(co.Batches(idle.ctx))))
	} else {
		err = p.print(co.Batches(reading))
	}
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
	f.note("printed %s: %s, %s B", f.topic, cli.Plural(p.records, "record"), cli.Thousands(p.bytes))
	return err
}

func (p *printer) print(batches iter.Seq2[client.Batch, error]) error {
	if len(p.ahead) == 0 {
		return nil
	}
	for b, err := range batches {
		if err != nil {
			return err
		}
		if b.Gap != nil {
			p.note("gap in %s: %v", p.topic, &client.GapError{Partition: b.Partition, Gap: *b.Gap})
		}
		if b.Batch != nil {
			if err := p.batch(b); err != nil {
				return err
			}
		}
		caughtUp := behind(b) >= b.High
		if caughtUp && p.atEnd {
			delete(p.ahead, b.Partition)
		}
		if len(p.ahead) == 0 {
			return nil
		}
		if caughtUp || p.share { // nothing more waits in this partition, perhaps: let it be seen
			if err := p.out.Flush(); err != nil {
				return outputError(err)
			}
		}
	}
	return nil
}

// batch prints a batch's records, as far as the partition's limit goes.
func (p *printer) batch(b client.Batch) error {
	begin := p.begin[b.Partition]
	left, limited := p.left[b.Partition]
	since, early := p.since[b.Partition] // the broker knows the times of batches, not those of the records in them
	rs, err := b.Open()
	if err != nil {
		return err
	}
	for rs.Next() {
		if rs.Record.Offset < begin || early && rs.Record.Timestamp < since {
			continue
		}
		early = false
		if limited {
			if left == 0 {
				break
			}
			left--
		}
		p.text = p.form.append(p.text[:0], b.Partition, &rs.Record)
		if _, err := p.out.Write(p.text); err != nil {
			return outputError(err)
		}
		p.records++
		p.bytes += int64(len(rs.Record.Value))
	}
	if !early {
		delete(p.since, b.Partition)
	}
	if limited {
		p.left[b.Partition] = left
		if left == 0 {
			delete(p.ahead, b.Partition)
		}
	}
	return rs.Err()
}
