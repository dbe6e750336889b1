package program

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/client"
)

// The last steps of a producer take their time on a slow broker, and a bounded one behind an interrupt, whenever that comes.
func TestAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		during, cancel := afterwards(ctx)
		defer cancel()
		select {
		case <-during.Done():
			t.Error("nothing was interrupted, and it has ended")
		case <-time.After(time.Hour):
		}
		interrupt()
		before, cancel := afterwards(ctx)
		defer cancel()
		began := time.Now()
		for _, ending := range []context.Context{during, before} {
			select {
			case <-ending.Done():
			case <-time.After(time.Hour):
			}
			if d := time.Since(began); d != lastWords {
				t.Errorf("it ended %v behind the interrupt, want %v", d, lastWords)
			}
		}
		last, cancel := afterwards(t.Context())
		cancel()
		if last.Err() == nil {
			t.Error("it goes on behind its end")
		}
	})
}

// What is done with a batch is no silence, however long it takes.
func TestIdleEndWaitsForWhoIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIdleEnd(t.Context())
		three := func(yield func(client.Batch, error) bool) {
			for range 3 {
				if !yield(client.Batch{}, nil) {
					return
				}
			}
			<-i.ctx.Done()
			yield(client.Batch{}, i.ctx.Err())
		}
		var began time.Time
		n := 0
		for _, err := range i.watch(three) {
			if err != nil {
				break
			}
			n++
			<-time.After(time.Hour)
			if err := i.ctx.Err(); err != nil {
				t.Fatal(err)
			}
			began = time.Now()
		}
		if d := time.Since(began); n != 3 || d < time.Second || d > time.Second+2*idleTick {
			t.Errorf("%d batches, and the end after %v", n, d)
		}
		if err := i.through(context.Cause(i.ctx)); err != nil {
			t.Error(err)
		}
		other := errors.New("another error")
		if i = newIdleEnd(t.Context()); i.through(other) != other {
			t.Error("an error was lost")
		}
		i.stop()
	})
}
