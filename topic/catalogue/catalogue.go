package catalogue

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
	"github.com/lightio/lightq/journal/vfs"
)

const (
	topicsName = "topics"
	entryName  = "topic"

	// newPrefix stands before the name of a topic's directory until its entry is in it, deletedPrefix once the topic is gone.
	newPrefix     = ".new-"
	deletedPrefix = ".deleted-"
	// logDeletedSuffix is what journal.Delete leaves behind of a partition when it is cut short.
	logDeletedSuffix = ".deleted"

	// CeilingJump is how much a topic's ceilings rise when its entry is lost and the one before it stands in: more than one
	// Put raises them, so that no offset is given out twice. Put writes the entry twice where it raises them by more.
	CeilingJump codec.Offset = 1 << 32

	maxTold = 16 // names of a kind in a Report
)

// A Catalogue is the durable list of topics of a data directory. Make one with Open.
type Catalogue struct {
	fsys   vfs.FS
	dir    string // the data directory
	topics string // the directory of the topics
	log    *slog.Logger

	mu     sync.Mutex
	byID   map[codec.TopicID]*record
	byName map[string]*record
	aside  map[codec.TopicID]*aside

	asideList atomic.Pointer[[]Aside] // what SetAside returns

	// unsettled are topics that are gone as far as anyone can see, but whose going may not survive a power cut.
	unsettled map[codec.TopicID]string // their names
	ids       producerIDs
}

// record is a topic that is served.
type record struct{ entry Entry }

// A Report is what Open found.
type Report struct {
	Topics, Partitions int
	// FellBack are the files that were damaged and whose predecessors stand in, at most 16.
	FellBack      []string
	FellBackCount int
	// Grown are topics with more partitions on disk than in their entry, which was raised.
	Grown int
	// SetAside is how many topics cannot be served; see Catalogue.SetAside.
	SetAside int
	// Finished counts creations and deletions that had been cut short and were cleaned up.
	Finished int
	// Stray are names in the directory of topics that mean nothing and were left alone, at most 16.
	Stray      []string
	StrayCount int
}

// Open reads the catalogue of a data directory, which is made if it is not there. Damage is no error: it is logged and reported. An
// error is the file system's; nothing was then removed but remnants of what had been cut short, and another try may succeed.
func Open(fsys vfs.FS, dir string, log *slog.Logger) (*Catalogue, Report, error) {
	c := &Catalogue{
		fsys: fsys, dir: dir, topics: path.Join(dir, topicsName), log: log,
		byID: map[codec.TopicID]*record{}, byName: map[string]*record{}, aside: map[codec.TopicID]*aside{},
		unsettled: map[codec.TopicID]string{},
	}
	var r Report
	if err := c.load(&r); err != nil {
		return nil, r, fmt.Errorf("open catalogue: %w", err)
	}
	return c, r, nil
}

// load reads everything.
func (c *Catalogue) load(r *Report) error {
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.loadProducerIDs(); err != nil {
		return err
	}
	list, err := c.fsys.List(c.topics)
	if err != nil {
		return err
	}
	var loaded []*loadedTopic
	for _, e := range list {
		id, isTopic := parseID(e.Name)
		switch {
		case isTopic:
			t, err := c.loadTopic(id, e)
			if err != nil {
				return err
			}
			if t == nil {
				r.Finished++
				continue
			}
			loaded = append(loaded, t)
		case e.Kind == vfs.Dir && isRemnant(e.Name):
			if c.removeRemnant(e.Name) {
				r.Finished++
			}
		default:
			r.StrayCount++
			if len(r.Stray) < maxTold {
				r.Stray = append(r.Stray, path.Join(c.topics, e.Name))
			}
		}
	}
	// What was seen may have been in the page cache alone, after the death of a process: now it stays as it is.
	if err := c.fsys.SyncDir(c.topics); err != nil {
		return err
	}
	c.settle(loaded, r)
	if r.StrayCount > 0 {
		c.log.Warn("names in the directory of topics mean nothing and are left alone", "count", r.StrayCount, "some", r.Stray)
	}
	return nil
}

// prepare makes the directories of a new data directory. The file of producer ids comes first, so that its loss is told from its never
// having been there.
func (c *Catalogue) prepare() error {
	if err := vfs.MkdirAll(c.fsys, c.dir); err != nil {
		return err
	}
	list, err := c.fsys.List(c.dir)
	if err != nil {
		return err
	}
	topics, ids := false, false
	for _, e := range list {
		switch e.Name {
		case topicsName:
			if topics = true; e.Kind != vfs.Dir {
				return fmt.Errorf("%s is not a directory, and links are not followed", c.topics)
			}
		case producerIDsName, producerIDsName + oldSuffix:
			ids = true
		}
	}
	if !topics {
		if err := c.syncAbove(); err != nil {
			return err
		}
	}
	if !topics && !ids {
		b, err := appendProducerIDs(nil, 0)
		if err != nil {
			return err
		}
		if err := replace(c.fsys, c.dir, producerIDsName, b, nil); err != nil {
			return err
		}
	}
	if !topics {
		if err := c.fsys.Mkdir(c.topics); err != nil {
			return err
		}
	}
	return c.fsys.SyncDir(c.dir)
}

// syncAbove makes the name of the data directory durable, and those above it: an attempt that failed or died may have made them
// and not more. Directories that may not be read are not ours.
func (c *Catalogue) syncAbove() error {
	for dir := path.Clean(c.dir); ; {
		above := path.Dir(dir)
		if above == dir {
			return nil
		}
		if err := c.fsys.SyncDir(above); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		dir = above
	}
}

func isRemnant(name string) bool {
	for _, prefix := range []string{newPrefix, deletedPrefix} {
		if s, ok := strings.CutPrefix(name, prefix); ok {
			if _, ok := parseID(s); ok {
				return true
			}
		}
	}
	return false
}

// removeRemnant finishes what was cut short. A failure harms nothing: the name means nothing to anyone.
func (c *Catalogue) removeRemnant(name string) bool {
	dir := path.Join(c.topics, name)
	if err := vfs.RemoveAll(c.fsys, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Warn("a remnant of a topic cannot be removed", "path", dir, "err", err)
		return false
	}
	return true
}

// loadedTopic is a directory with the name of a topic id. reason, if not "", says why it cannot be served.
type loadedTopic struct {
	id       codec.TopicID
	entry    Entry // has a name if anything could be read
	known    bool  // entry was read from a sound file
	fellBack string
	grown    bool
	strange  bool // the reason is a newer format, or something that is not a directory
	reason   string
}

// loadTopic looks at one directory. nil: it was the remnant of a creation, and is gone.
func (c *Catalogue) loadTopic(id codec.TopicID, e vfs.Entry) (*loadedTopic, error) {
	t := &loadedTopic{id: id}
	if e.Kind != vfs.Dir {
		t.reason, t.strange = "it is not a directory, and links are not followed", true
		return t, nil
	}
	dir := c.topicDir(id)
	list, err := c.fsys.List(dir)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(list, func(e vfs.Entry) bool { return !strings.HasSuffix(e.Name, tempSuffix) || e.Kind != vfs.Regular }) {
		if err := vfs.RemoveAll(c.fsys, dir); err != nil {
			return nil, err
		}
		return nil, nil
	}
	if err := c.loadEntry(t, dir); err != nil || t.reason != "" {
		return t, err
	}
	if t.entry.ID != id {
		t.reason = fmt.Sprintf("its entry is that of the topic id %x: it was copied or renamed", t.entry.ID)
		return t, nil
	}
	for _, e := range list {
		n, isPartition := parsePartition(e.Name)
		switch {
		case isPartition && e.Kind != vfs.Dir:
			t.reason, t.strange = fmt.Sprintf("its partition %d is not a directory, and links are not followed", n), true
			return t, nil
		case e.Name == entryName+pendingSuffix:
			// The entry may be in the page cache alone, after the death of a process: now it stays as it is.
			if err := c.fsys.SyncDir(dir); err != nil {
				return nil, err
			}
			if err := removeFile(c.fsys, path.Join(dir, e.Name)); err != nil {
				return nil, err
			}
		case isPartition && n >= t.entry.Settings.Partitions:
			if err := c.growTo(t, dir, n); err != nil {
				return nil, err
			}
		case e.Kind == vfs.Dir && strings.HasSuffix(e.Name, logDeletedSuffix):
			if err := journal.DeleteLeftovers(c.fsys, dir); err != nil {
				c.log.Warn("remnants of a partition cannot be removed", "path", dir, "err", err)
			}
		}
	}
	return t, nil
}

// loadEntry reads the entry, or the one before if it is damaged.
func (c *Catalogue) loadEntry(t *loadedTopic, dir string) error {
	name := path.Join(dir, entryName)
	e, found, reason, err := c.readEntry(name)
	if err != nil {
		return err
	}
	if reason == nil {
		t.entry, t.known = e, true
		return nil
	}
	t.entry.Name = e.Name // a guess
	if t.strange = errors.As(reason, new(*strangeError)); t.strange {
		t.reason = fmt.Sprintf("its entry %s: %v", entryName, reason)
		return nil
	}
	old, foundOld, oldReason, err := c.readEntry(name + oldSuffix)
	if err != nil {
		return err
	}
	if oldReason == nil {
		for i := range old.Ceilings {
			old.Ceilings[i] += CeilingJump
		}
		old.Ends = nil // they held until the entry that is lost
		t.entry, t.known, t.fellBack = old, true, reason.Error()
		return nil
	}
	if t.entry.Name == "" {
		t.entry.Name = old.Name
	}
	t.strange = errors.As(oldReason, new(*strangeError))
	t.reason = fmt.Sprintf("its entry %s: %v; and %s: %v", entryName, reason, entryName+oldSuffix, oldReason)
	if !found && !foundOld {
		t.reason = "it holds data, but no entry"
	}
	return nil
}

// readEntry reads one file; reason says why it cannot be used, and e then has at most a name.
func (c *Catalogue) readEntry(name string) (e Entry, found bool, reason, err error) {
	b, err := readFile(c.fsys, name)
	if err == nil {
		if e, err = parseEntry(b); err != nil {
			e = Entry{Name: guessName(b)}
		}
	}
	switch {
	case err == nil:
		return e, true, nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return e, false, errors.New("it is missing"), nil
	case errors.As(err, new(*damagedError)), errors.As(err, new(*strangeError)):
		return e, true, err, nil
	}
	return e, false, nil, err
}

// growTo raises the number of partitions where the disk has a partition's log beyond it: the entry that says so is lost.
func (c *Catalogue) growTo(t *loadedTopic, dir string, n uint32) error {
	s, err := c.survey(path.Join(dir, strconv.FormatUint(uint64(n), 10)), n)
	if err != nil || s.Segments == 0 || s.Topic != t.id {
		return err
	}
	t.grown = true
	t.entry.Settings.Partitions = n + 1
	t.entry.Ends = nil
	if len(t.entry.Ceilings) > 0 {
		t.entry.Ceilings = raised(t.entry.Ceilings, int(n)+1)
	}
	return nil
}

// settle decides which topics are served: those that are sound and have a name of their own.
func (c *Catalogue) settle(loaded []*loadedTopic, r *Report) {
	claims := map[string][]*loadedTopic{}
	for _, t := range loaded {
		if t.reason == "" {
			claims[t.entry.Name] = append(claims[t.entry.Name], t)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(claims)) {
		rivals := claims[name]
		if len(rivals) == 1 {
			continue
		}
		// An entry that merely stands in for a lost one gives way.
		current := slices.DeleteFunc(slices.Clone(rivals), func(t *loadedTopic) bool { return t.fellBack != "" })
		for _, t := range rivals {
			if len(current) == 1 && t == current[0] {
				continue
			}
			other := rivals[0]
			if other == t {
				other = rivals[1]
			}
			t.reason = fmt.Sprintf("the topic %x has the same name", other.id)
		}
	}
	for _, t := range loaded {
		if t.reason != "" {
			c.setAside(t)
			r.SetAside++
			continue
		}
		rec := &record{entry: t.entry}
		c.byID[t.id], c.byName[t.entry.Name] = rec, rec
		r.Topics++
		r.Partitions += int(t.entry.Settings.Partitions)
		name := path.Join(c.topicDir(t.id), entryName)
		if t.fellBack != "" {
			c.log.Warn("a topic's entry is damaged: the one before it stands in", "topic", t.entry.Name, "path", name, "err", t.fellBack)
			r.FellBackCount++
			if len(r.FellBack) < maxTold {
				r.FellBack = append(r.FellBack, name)
			}
		}
		if t.grown {
			c.log.Warn("a topic has more partitions on disk than its entry says: the disk is right", "topic", t.entry.Name,
				"path", name, "partitions", t.entry.Settings.Partitions)
			r.Grown++
		}
	}
}

// Entries returns the topics in the order of their names. They are copies.
func (c *Catalogue) Entries() []Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Entry, 0, len(c.byName))
	for _, name := range slices.Sorted(maps.Keys(c.byName)) {
		list = append(list, c.byName[name].entry.clone())
	}
	return list
}

// Put creates a topic, or replaces the entry of the one that has its id; the name cannot change, and neither partitions nor ceilings can
// fall. It is durable when Put returns. After an error the old state stands, or the new one after a restart, never neither: a
// creation that failed can be tried again under a new id. The error is an *AsideError if the name or the id belong to a topic
// that is set aside.
func (c *Catalogue) Put(e Entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e = e.clone()
	b, err := appendEntry(nil, &e)
	if err != nil {
		return fmt.Errorf("put topic: %w", err)
	}
	rec := c.byID[e.ID]
	if rec == nil {
		return wrap("create topic", e.Name, c.create(e, b))
	}
	return wrap("replace entry of topic", e.Name, c.replaceEntry(rec, e, b))
}

// create makes a topic's directory with the entry in it, under another name first: a directory with the name of a topic has an entry. mu
// is held.
func (c *Catalogue) create(e Entry, b []byte) error {
	if err := c.free(e.Name, e.ID); err != nil {
		return err
	}
	// A topic of this name that went without its going being durable must not come back beside the new one.
	if err := c.settleRemovals(); err != nil {
		return err
	}
	dir, fresh := c.topicDir(e.ID), path.Join(c.topics, newPrefix+hex.EncodeToString(e.ID[:]))
	if err := vfs.RemoveAll(c.fsys, fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := c.fsys.Mkdir(fresh)
	if err == nil {
		err = replace(c.fsys, fresh, entryName, b, nil)
	}
	if err != nil {
		return c.undo(err, fresh)
	}
	if err = c.fsys.Rename(fresh, dir); err == nil {
		err = c.fsys.SyncDir(c.topics)
	}
	if err != nil {
		// It may be there now, or after a restart.
		c.unsettled[e.ID] = e.Name
		return c.undo(errors.Join(err, c.settleRemovals()), fresh)
	}
	rec := &record{entry: e}
	c.byID[e.ID], c.byName[e.Name] = rec, rec
	return nil
}

// undo removes what a failed creation left, as far as it can be: the name means nothing to anyone.
func (c *Catalogue) undo(err error, fresh string) error {
	if rerr := vfs.RemoveAll(c.fsys, fresh); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		c.log.Warn("a remnant of a topic cannot be removed", "path", fresh, "err", rerr)
	}
	return err
}

// free says whether a new topic may have this name and id. mu is held.
func (c *Catalogue) free(name string, id codec.TopicID) error {
	if c.byName[name] != nil {
		return fmt.Errorf("the name %s is taken: %w", name, fs.ErrExist)
	}
	if a := c.aside[id]; a != nil {
		return a.err()
	}
	return c.claimed(name, id)
}

// claimed returns an *AsideError if a topic that is set aside, other than id, has the name. mu is held.
func (c *Catalogue) claimed(name string, id codec.TopicID) error {
	for _, a := range c.aside {
		if a.Name == name && a.ID != id {
			return a.err()
		}
	}
	return nil
}

// replaceEntry replaces the entry of a topic. mu is held.
func (c *Catalogue) replaceEntry(rec *record, e Entry, b []byte) error {
	was := &rec.entry
	if e.Name != was.Name {
		return fmt.Errorf("it cannot become %s: a topic keeps its name", e.Name)
	}
	if e.Settings.Partitions < was.Settings.Partitions {
		return fmt.Errorf("its %d partitions cannot become %d", was.Settings.Partitions, e.Settings.Partitions)
	}
	if len(e.Ceilings) < len(was.Ceilings) {
		return fmt.Errorf("its %d ceilings cannot become %d", len(was.Ceilings), len(e.Ceilings))
	}
	// The entry that will stand behind the new one has to be close enough for CeilingJump.
	twice := false
	for i, ceiling := range e.Ceilings {
		low := codec.Offset(0)
		if i < len(was.Ceilings) {
			low = was.Ceilings[i]
		}
		if ceiling < low {
			return fmt.Errorf("the ceiling %d of partition %d cannot become %d", low, i, ceiling)
		}
		twice = twice || ceiling-low > CeilingJump || len(was.Ceilings) == 0
	}
	dir := c.topicDir(e.ID)
	// From memory, not from the file: that may be damaged.
	old, err := appendEntry(nil, was)
	if err != nil {
		return err
	}
	if err := replace(c.fsys, dir, entryName, b, old); err != nil {
		return err
	}
	if twice {
		if err := replace(c.fsys, dir, entryName, b, b); err != nil {
			return err
		}
	}
	rec.entry = e
	return nil
}

// Delete makes a topic disappear, durably and in one step, and then removes everything in its directory; what cannot be removed is
// tried again by the next Open. The logs in it must be closed. An id that is not known is an error that wraps fs.ErrNotExist. After any
// other error the topic is not served any more, and may be there again after a restart; Delete can be called again.
func (c *Catalogue) Delete(id codec.TopicID) error {
	c.mu.Lock()
	rec := c.byID[id]
	_, unsettled := c.unsettled[id]
	if rec == nil && !unsettled {
		c.mu.Unlock()
		return fmt.Errorf("delete topic %x: %w", id, fs.ErrNotExist)
	}
	if rec != nil {
		delete(c.byID, id)
		delete(c.byName, rec.entry.Name)
		c.unsettled[id] = rec.entry.Name
	}
	err := c.settleRemovals()
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("delete topic %x: %w", id, err)
	}
	c.removeRemnant(deletedName(id)) // without the lock: it may hold many files
	return nil
}

// settleRemovals makes durable that the unsettled topics are gone. mu is held.
func (c *Catalogue) settleRemovals() error {
	if len(c.unsettled) == 0 {
		return nil
	}
	for id := range c.unsettled {
		err := c.fsys.Rename(c.topicDir(id), path.Join(c.topics, deletedName(id)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := c.fsys.SyncDir(c.topics); err != nil {
		return err
	}
	clear(c.unsettled)
	return nil
}

func deletedName(id codec.TopicID) string { return deletedPrefix + hex.EncodeToString(id[:]) }

func (c *Catalogue) topicDir(id codec.TopicID) string {
	return path.Join(c.topics, hex.EncodeToString(id[:]))
}

// PartitionDir is the directory for the log of a topic's partition. The journal makes it.
func (c *Catalogue) PartitionDir(id codec.TopicID, n uint32) string {
	return path.Join(c.topicDir(id), strconv.FormatUint(uint64(n), 10))
}
