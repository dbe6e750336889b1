package catalogue

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
)

const (
	producerIDsName  = "producer-ids"
	producerIDBlock  = 1000    // ids reserved by one write
	maxProducerIDs   = 1 << 20 // that one call may ask for
	maxProducerID    = 1 << 62 // ids are below it
	producerIDsJump  = 1 << 32 // over what a lost file may have reserved behind the one before it
	randomProducerID = 1 << 61 // where ids start that follow the loss of both files, or above
)

// producerIDsFile says what was reserved: ids below Next may have been given out.
type producerIDsFile struct {
	Next int64 `json:"next"`
}

// producerIDs are the ids that were reserved on disk and not yet given out: [next, limit).
type producerIDs struct{ next, limit int64 }

func appendProducerIDs(dst []byte, next int64) ([]byte, error) {
	return appendFile(dst, producerIDsMagic, producerIDsFile{Next: next})
}

func parseProducerIDs(b []byte) (next int64, err error) {
	body, err := parseFile(b, producerIDsMagic)
	if err != nil {
		return 0, err
	}
	var f producerIDsFile
	if err := unmarshal(body, &f); err != nil {
		return 0, err
	}
	if f.Next < 0 || f.Next > maxProducerID {
		return 0, strange("the next producer id is %d", f.Next)
	}
	return f.Next, nil
}

// ReserveProducerIDs returns the first of n producer ids, at most 1,048,576, that were never returned before, before a restart or
// a crash neither. It writes to the disk once for every thousand ids.
func (c *Catalogue) ReserveProducerIDs(n int64) (first int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n < 1 || n > maxProducerIDs {
		return 0, fmt.Errorf("reserve producer ids: %d at a time are outside of 1 to %d", n, maxProducerIDs)
	}
	if c.ids.limit-c.ids.next < n {
		if err := c.reserveBlock(n); err != nil {
			return 0, fmt.Errorf("reserve producer ids: %w", err)
		}
	}
	first = c.ids.next
	c.ids.next += n
	return first, nil
}

// reserveBlock reserves ids so that there are at least n. mu is held.
func (c *Catalogue) reserveBlock(n int64) error {
	limit := c.ids.next + max(n, producerIDBlock)
	if limit > maxProducerID {
		return fmt.Errorf("all ids below %d are used up", int64(maxProducerID))
	}
	now, err := appendProducerIDs(nil, limit)
	if err != nil {
		return err
	}
	old, err := appendProducerIDs(nil, c.ids.limit) // from memory: the file may be damaged
	if err != nil {
		return err
	}
	if err := replace(c.fsys, c.dir, producerIDsName, now, old); err != nil {
		return err
	}
	c.ids.limit = limit
	return nil
}

// loadProducerIDs reads what was reserved. A lost file falls back to the one before with a jump over what may have been given out
// since, and the loss of both to a random number far above all others.
func (c *Catalogue) loadProducerIDs() error {
	name := path.Join(c.dir, producerIDsName)
	next, reason, err := c.readProducerIDs(name)
	if err != nil {
		return err
	}
	if reason == nil {
		c.ids = producerIDs{next: next, limit: next}
		return nil
	}
	old, oldReason, err := c.readProducerIDs(name + oldSuffix)
	if err != nil {
		return err
	}
	if oldReason == nil && old < maxProducerID-producerIDsJump {
		old += producerIDsJump
		c.log.Warn("the file of producer ids is damaged: going on far above the one before", "path", name, "err", reason, "next", old)
	} else {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			panic(fmt.Sprintf("BUG: crypto/rand failed: %v", err)) // documented never to happen
		}
		old = randomProducerID + int64(binary.BigEndian.Uint64(b[:])>>4)
		c.log.Error("the files of producer ids are damaged: going on at a random number", "path", name, "err", reason, "next", old,
			slog.Any("old", oldReason))
	}
	c.ids = producerIDs{next: old, limit: old}
	return nil
}

// readProducerIDs reads one file; reason says why it cannot be used.
func (c *Catalogue) readProducerIDs(name string) (next int64, reason, err error) {
	b, err := readFile(c.fsys, name)
	if err == nil {
		next, err = parseProducerIDs(b)
	}
	var damage *damagedError
	var foreign *strangeError
	switch {
	case err == nil:
		return next, nil, nil
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &damage):
		return 0, err, nil
	case errors.As(err, &foreign):
		return 0, nil, fmt.Errorf("read producer ids %s: %w: nothing was changed", name, err)
	}
	return 0, nil, fmt.Errorf("read producer ids: %w", err)
}
