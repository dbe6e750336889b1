package program

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What is done with a batch is no silence, however long it takes.
func TestIdleEndWaitsForWhoIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIdleEnd(t.Context())
		i.busy.Store(true)
		<-time.After(time.Hour)
		if err := i.ctx.Err(); err != nil {
			t.Fatal(err)
		}
		i.moves.Add(1)
		i.busy.Store(false)
		began := time.Now()
		<-i.ctx.Done()
		if d := time.Since(began); d < time.Second || d > time.Second+2*idleTick {
			t.Errorf("it took %v", d)
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
