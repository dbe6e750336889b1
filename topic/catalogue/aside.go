package catalogue

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
	"github.com/lightio/lightq/journal/vfs"
)

// An Aside is a topic's directory that cannot be served and was left as it is.
type Aside struct {
	Path   string
	ID     codec.TopicID // what the directory's name says
	Name   string        // the topic's name as far as it could be read; "": not known
	Reason string
	// Partitions is what the segments of the logs in it say, in order.
	Partitions []AsidePartition
}

// An AsidePartition is what the headers of a log's segments say.
type AsidePartition struct {
	Partition uint32
	Topic     codec.TopicID // of the first segment that can be read
	Segments  int
	Bytes     int64
	// Start is the base offset of the first segment that can be read and Last that of the last one. Where the log ends is found
	// out when it is opened.
	Start, Last codec.Offset
	// Foreign counts segments of another topic or partition, Unreadable those without a sound header.
	Foreign, Unreadable int
}

// An AsideError says that a name or an id belongs to a topic that is set aside.
type AsideError struct {
	Aside Aside
}

func (e *AsideError) Error() string {
	name := e.Aside.Name
	if name == "" {
		name = "NAME"
	}
	return fmt.Sprintf("a topic is set aside in %s: %s. Stop the broker and adopt it with: lightq-broker adopt --id %x -t %s, or move the directory away",
		e.Aside.Path, e.Aside.Reason, e.Aside.ID, name)
}

// aside is an Aside with what adopting it takes.
type aside struct {
	Aside
	entry   Entry // if known
	known   bool
	strange bool // it must not be adopted
}

func (a *aside) err() error { return &AsideError{Aside: a.clone()} }

func (a *aside) clone() Aside {
	b := a.Aside
	b.Partitions = slices.Clone(a.Partitions)
	return b
}

// setAside reports a topic that is not served. Its directory is looked at and not touched; an error on the way is part of the report.
func (c *Catalogue) setAside(t *loadedTopic) {
	a := &aside{
		Aside: Aside{Path: c.topicDir(t.id), ID: t.id, Name: t.entry.Name, Reason: t.reason},
		entry: t.entry, known: t.known, strange: t.strange,
	}
	c.aside[t.id] = a
	if err := c.surveyAll(a); err != nil {
		c.log.Warn("the logs of a topic that is set aside cannot be looked at", "path", a.Path, "err", err)
	}
	c.listAside()
	var bytes int64
	for _, p := range a.Partitions {
		bytes += p.Bytes
	}
	c.log.Error("a topic is set aside: it is not served, and nothing of it is removed", "path", a.Path, "topic", a.Name,
		"err", a.Reason, "partitions", len(a.Partitions), "bytes", bytes)
}

// surveyAll reads the headers of all segments of a topic's directory.
func (c *Catalogue) surveyAll(a *aside) error {
	list, err := c.fsys.List(a.Path)
	if err != nil {
		return err
	}
	for _, e := range list {
		n, ok := parsePartition(e.Name)
		if !ok || e.Kind != vfs.Dir {
			continue
		}
		p, err := c.survey(path.Join(a.Path, e.Name), n)
		if err != nil {
			return err
		}
		a.Partitions = append(a.Partitions, p)
	}
	slices.SortFunc(a.Partitions, func(x, y AsidePartition) int { return int(x.Partition) - int(y.Partition) })
	return nil
}

// survey reads the headers of the segments in a partition's directory.
func (c *Catalogue) survey(dir string, n uint32) (AsidePartition, error) {
	p := AsidePartition{Partition: n}
	names, err := journal.Segments(c.fsys, dir)
	if err != nil {
		return p, err
	}
	for _, name := range names {
		h, _, err := journal.ReadHeader(c.fsys, name)
		if errors.Is(err, journal.ErrNoHeader) || errors.Is(err, journal.ErrUnsupported) {
			p.Unreadable++
			continue
		}
		if err != nil {
			return p, err
		}
		if p.Segments == 0 {
			p.Topic, p.Start = codec.TopicID(h.Topic), h.Base
		}
		if codec.TopicID(h.Topic) != p.Topic || h.Partition != n {
			p.Foreign++
			continue
		}
		p.Segments++
		p.Last = h.Base
	}
	list, err := c.fsys.List(dir)
	if err != nil {
		return p, err
	}
	for _, e := range list {
		if strings.HasSuffix(e.Name, ".seg") {
			p.Bytes += e.Size
		}
	}
	return p, nil
}

// SetAside returns the topics that cannot be served, in the order of their paths. The list is shared: do not change it. It does not wait
// for the disk.
func (c *Catalogue) SetAside() []Aside {
	if list := c.asideList.Load(); list != nil {
		return *list
	}
	return nil
}

// listAside makes what SetAside returns anew.
func (c *Catalogue) listAside() {
	list := make([]Aside, 0, len(c.aside))
	for _, a := range c.aside {
		list = append(list, a.clone())
	}
	slices.SortFunc(list, func(a, b Aside) int { return strings.Compare(a.Path, b.Path) })
	c.asideList.Store(&list)
}

// asideSuffix is given to a copy of what adoption finds in the place of an entry.
const asideSuffix = ".aside"

// Adopt makes a topic of a directory that was set aside, under a name that is free. What its entry said is kept as far as it could be
// read; the number of partitions is at least that of the logs in it. Fields of s that are not zero take precedence; with nothing
// else to go by the storage is file. A topic whose entry was lost has no credentials afterwards, and its ceilings, if it is one that
// needs them, begin at CeilingJump. The new entry is durable when Adopt returns; copies of the files that it replaces stay, with .aside
// behind their names.
func (c *Catalogue) Adopt(id codec.TopicID, name string, s codec.TopicSettings) (Entry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, err := c.adopt(id, name, s)
	if err != nil {
		return Entry{}, fmt.Errorf("adopt topic %x: %w", id, err)
	}
	return e.clone(), nil
}

func (c *Catalogue) adopt(id codec.TopicID, name string, s codec.TopicSettings) (e Entry, err error) {
	a := c.aside[id]
	switch {
	case a == nil:
		return e, errors.New("no topic of this id is set aside")
	case a.strange:
		return e, fmt.Errorf("it cannot be adopted: %s", a.Reason)
	case c.byName[name] != nil:
		return e, fmt.Errorf("there is a topic %s: adopt it under another name", name)
	}
	if err := c.claimed(name, id); err != nil {
		return e, err
	}
	e = a.merged(name, s)
	for _, p := range a.Partitions {
		if p.Segments > 0 && p.Topic != id {
			return e, fmt.Errorf("the log of its partition %d is that of the topic id %x: give the directory that name", p.Partition, p.Topic)
		}
	}
	b, err := appendEntry(nil, &e)
	if err != nil {
		return e, err
	}
	if err := c.settleRemovals(); err != nil {
		return e, err
	}
	// The first call of replace makes the topic; the second makes the entry before it the same, in the place of what was damaged.
	if err := c.keepReplaced(a.Path); err != nil {
		return e, err
	}
	for _, old := range [][]byte{nil, b} {
		if err := replace(c.fsys, a.Path, entryName, b, old); err != nil {
			return e, err
		}
	}
	rec := &record{entry: e}
	c.byID[id], c.byName[name] = rec, rec
	delete(c.aside, id)
	c.listAside()
	return e, nil
}

// keepReplaced copies what is in the place of the entries, for whoever wants to know what happened.
func (c *Catalogue) keepReplaced(dir string) error {
	for _, file := range []string{entryName, entryName + oldSuffix} {
		b, err := readFile(c.fsys, path.Join(dir, file))
		if err != nil {
			continue // there is none, or it is too large to be one
		}
		if err := replace(c.fsys, dir, file+asideSuffix, b, nil); err != nil {
			return err
		}
	}
	return nil
}

// merged is the entry of an adopted topic.
func (a *aside) merged(name string, s codec.TopicSettings) Entry {
	var e Entry
	if a.known {
		e = a.entry.clone()
		e.Ends = nil
	}
	e.Name, e.ID = name, a.ID
	if s.Partitions == 0 {
		s.Partitions = e.Settings.Partitions
	}
	e.Settings = e.Settings.With(s)
	if e.Settings.Storage == 0 {
		e.Settings.Storage = codec.StorageFile
	}
	e.Settings.Partitions = max(e.Settings.Partitions, 1)
	if n := len(a.Partitions); n > 0 {
		e.Settings.Partitions = max(e.Settings.Partitions, a.Partitions[n-1].Partition+1)
	}
	if !a.known && e.Settings.Storage != codec.StorageFile {
		e.Ceilings = raised(nil, int(e.Settings.Partitions))
	}
	if len(e.Ceilings) > 0 {
		e.Ceilings = raised(e.Ceilings, int(e.Settings.Partitions))
	}
	return e
}

// raised returns ceilings for n partitions. Nothing is known of those beyond the ones given.
func raised(ceilings []codec.Offset, n int) []codec.Offset {
	for len(ceilings) < n {
		ceilings = append(ceilings, CeilingJump)
	}
	return ceilings
}
