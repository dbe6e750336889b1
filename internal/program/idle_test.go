package program

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/client"
)

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
