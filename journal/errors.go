package journal

import (
	"errors"
	"fmt"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

var (
	// ErrClosed is returned once a log was closed or deleted.
	ErrClosed = errors.New("journal: closed")
	// ErrBusy says that a bound was reached: too many bytes wait for the disk, or too many reads. It is retryable.
	ErrBusy = errors.New("journal: busy")
	// ErrNoSpace matches a *RefusedError that lack of space caused.
	ErrNoSpace = errors.New("journal: no space")
	// ErrPoisoned matches a *PoisonedError.
	ErrPoisoned = errors.New("journal: poisoned")
	// ErrCorrupt matches a *CorruptionError.
	ErrCorrupt = errors.New("journal: corrupt")
	// ErrShortBuffer matches a *ShortBufferError.
	ErrShortBuffer = errors.New("journal: short buffer")
	// ErrUnsupported matches an *UnsupportedError.
	ErrUnsupported = errors.New("journal: unsupported format")
)

// RefusedError says that appends were refused and that nothing of them is or will be in the log. It is retryable: the log
// takes an append at From again.
type RefusedError struct {
	From codec.Offset // the offset that the next append must have
	Err  error        // the cause
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("journal: refused from offset %d on: %v", e.From, e.Err)
}

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// Is matches ErrNoSpace if the cause is lack of space or quota.
func (e *RefusedError) Is(target error) bool { return target == ErrNoSpace && vfs.IsNoSpace(e.Err) }

// PoisonedError says that a write or a sync failed. What was appended and not yet durable then has an unknown outcome: it may
// or may not be there after a restart. The log takes no more appends; reads go on.
type PoisonedError struct {
	From codec.Offset // everything at or above it is unknown
	Err  error        // the first failure
}

func (e *PoisonedError) Error() string {
	return fmt.Sprintf("journal: poisoned, the outcome from offset %d on is unknown: %v", e.From, e.Err)
}

// Unwrap returns the first failure.
func (e *PoisonedError) Unwrap() error { return e.Err }

// Is matches ErrPoisoned.
func (e *PoisonedError) Is(target error) bool { return target == ErrPoisoned }

// CorruptionError says that bytes of a file are not what was written. The file is left as it is.
type CorruptionError struct {
	Path     string
	Position Position
	Offset   codec.Offset // the first record that cannot be read
	Next     codec.Offset // where reading can go on
	Reason   string
}

func (e *CorruptionError) Error() string {
	return fmt.Sprintf("journal: corrupt: %s at position %d: offsets %d to %d: %s", e.Path, e.Position, e.Offset, e.Next, e.Reason)
}

// Is matches ErrCorrupt.
func (e *CorruptionError) Is(target error) bool { return target == ErrCorrupt }

// RangeError says that an offset is not in the log, and what is.
type RangeError struct {
	Offset codec.Offset
	Start  codec.Offset // the first kept offset
	Next   codec.Offset // the offset the next record gets
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("journal: offset %d is out of range, the log has %d to %d", e.Offset, e.Start, e.Next)
}

// GapError says that the offsets [From, Next) hold no record, and will never.
type GapError struct {
	From, Next codec.Offset
	Declared   bool // given up on purpose; if false a file is missing
}

func (e *GapError) Error() string {
	if e.Declared {
		return fmt.Sprintf("journal: offsets %d to %d are a declared gap", e.From, e.Next)
	}
	return fmt.Sprintf("journal: offsets %d to %d are missing", e.From, e.Next)
}

// Is matches ErrCorrupt if the offsets are missing.
func (e *GapError) Is(target error) bool { return target == ErrCorrupt && !e.Declared }

// ShortBufferError says that a buffer is too small for the batch that was asked for.
type ShortBufferError struct{ Need int }

func (e *ShortBufferError) Error() string {
	return fmt.Sprintf("journal: the buffer must have %d bytes", e.Need)
}

// Is matches ErrShortBuffer.
func (e *ShortBufferError) Is(target error) bool { return target == ErrShortBuffer }

// UnsupportedError says that a segment was written by a version that this one does not understand.
type UnsupportedError struct {
	Path     string
	Version  uint16
	Features uint32 // the required feature bits that are unknown
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("journal: %s has format version %d and unknown required features %#x: use a newer version of the program",
		e.Path, e.Version, e.Features)
}

// Is matches ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }
