package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lightio/lightq/codec"
)

// ErrClosed is returned by methods of a Client, Producer or Consumer after its Close, and by calls that Close
// interrupts.
var ErrClosed = errors.New("lightq: closed")

// A ConnError says that a connection could not be made, or was lost, and why. When it comes from a publish, the
// record may or may not have been stored: the confirm did not arrive.
type ConnError struct {
	Op   string // "dial", "hello", "read", "write"
	Addr string // the broker's address as it was dialled
	Err  error  // a net error, or the *codec.WireError with which the broker closed the connection
}

func (e *ConnError) Error() string {
	return fmt.Sprintf("%s broker %s: %v", e.Op, e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *ConnError) Unwrap() error { return e.Err }

// dialErrors are the reasons why no broker of several could be reached, in the order in which they were tried.
type dialErrors []error

func (e dialErrors) Error() string {
	var b strings.Builder
	b.WriteString("no broker could be reached")
	for i, err := range e {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep)
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap returns the reasons.
func (e dialErrors) Unwrap() []error { return e }

// A GapError says that records of a partition will never come. Consumer.Records yields it between the records
// before and behind the gap; it is not fatal.
type GapError struct {
	Partition int
	Gap       codec.Gap
}

func (e *GapError) Error() string {
	why := "for a reason that this version does not know"
	switch e.Gap.Reason {
	case codec.GapDropped:
		why = "the topic dropped them before they were read"
	case codec.GapDeclared:
		why = "they were never given out or were lost with a restart"
	case codec.GapPurged:
		why = "they were purged"
	case codec.GapExpired:
		why = "the topic's retention removed them"
	case codec.GapDamaged:
		why = "the broker's files are damaged there"
	}
	return fmt.Sprintf("partition %d: offsets %d to %d are missing: %s", e.Partition, e.Gap.From, e.Gap.Next-1, why)
}

// ErrDecompressedTooLarge says that decompressing the records of a batch takes more memory than MaxDecompressedBytes allows.
var ErrDecompressedTooLarge = errors.New("decompressing the records takes more memory than the consumer allows")

// A BatchError says that a batch arrived as its producer made it and that its records cannot be read: they do not
// decompress or do not decode (codec.CodeBadBatch), or are too large (ErrDecompressedTooLarge). Consumer.Records yields
// it in place of the records from Base on, or of the rest of them, and goes on behind the batch.
type BatchError struct {
	Partition  int
	Base, Next codec.Offset // of the batch's first record, and behind its last
	Err        error
}

func (e *BatchError) Error() string {
	return fmt.Sprintf("partition %d: batch of offsets %d to %d: %v", e.Partition, e.Base, e.Next-1, e.Err)
}

// Unwrap returns the cause.
func (e *BatchError) Unwrap() error { return e.Err }

// A PartitionError says that one partition of a Producer or Consumer failed, or refused a batch, while the others
// may go on.
type PartitionError struct {
	Topic     string
	Partition int
	Err       error // mostly a *codec.WireError
}

func (e *PartitionError) Error() string {
	return fmt.Sprintf("topic %s partition %d: %v", e.Topic, e.Partition, e.Err)
}

// Unwrap returns the cause.
func (e *PartitionError) Unwrap() error { return e.Err }

// Retryable reports whether the same call may succeed later without a change by the caller: the broker's code says
// so, or the connection failed. A publish that is retried after a *ConnError may store the record twice.
func Retryable(err error) bool {
	if err == nil || errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) {
		return false
	}
	var several dialErrors
	if errors.As(err, &several) {
		return slices.ContainsFunc(several, Retryable) // one that comes back is enough
	}
	var wire *codec.WireError
	if errors.As(err, &wire) {
		return wire.Code.Info().Retriable
	}
	var conn *ConnError
	return errors.As(err, &conn)
}
