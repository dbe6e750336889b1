package topic

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
	"github.com/lightio/lightq/journal/vfs"
	"github.com/lightio/lightq/topic/catalogue"
)

// FilesConfig says where and how a registry stores topics.
type FilesConfig struct {
	FS    vfs.FS
	Dir   string // the data directory; made if it is not there
	Slabs *codec.SlabPool
	Log   *slog.Logger

	SyncWorkers int // goroutines that write and sync; 0: the journal's default
	ReadWorkers int // goroutines that read what memory does not hold; 0: the journal's default

	// DiskReserve is the free space in bytes below which publishes to files are refused; 0: the larger of 1 GiB and 5% of the
	// disk; negative: none.
	DiskReserve int64

	// OnRecover, if set, is told how many of the partitions that are stored in files have been opened.
	OnRecover func(done, total int)
}

// files is what the topics of a registry that has a data directory share.
type files struct {
	cfg       FilesConfig
	lock      io.Closer
	catalogue *catalogue.Catalogue
	syncers   *journal.Syncers
	readers   *journal.Readers
	full      atomic.Bool // the disk's reserve is reached
	warned    atomic.Bool // and it was near

	mu       sync.Mutex // of ceilings
	ceilings map[codec.TopicID][]codec.Offset
	ends     map[codec.TopicID][]codec.Offset // of topics that were closed in order and not used since
	asking   sync.WaitGroup

	readErrors logLimit
}

// A logLimit lets one line through each second.
type logLimit struct {
	mu   sync.Mutex
	last time.Time
}

func (l *logLimit) allow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) < time.Second {
		return false
	}
	l.last = time.Now()
	return true
}

// OpenFiles makes the registry keep its topics in a data directory, and loads those that are there. It is called once, before
// anything else. It waits for the disk: for the last segment of each partition that was not closed in order. An error is that of
// the directory's lock (vfs.ErrLocked) or of the file system; damage is none: what is damaged is logged and counted.
func (r *Registry) OpenFiles(cfg FilesConfig) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := vfs.MkdirAll(cfg.FS, cfg.Dir); err != nil {
		return fmt.Errorf("make data directory %s: %w", cfg.Dir, err)
	}
	lock, err := journal.LockDir(cfg.FS, cfg.Dir)
	if err != nil {
		return err
	}
	f := &files{cfg: cfg, lock: lock, ceilings: map[codec.TopicID][]codec.Offset{}, ends: map[codec.TopicID][]codec.Offset{}}
	cat, _, err := catalogue.Open(cfg.FS, cfg.Dir, cfg.Log)
	if err != nil {
		_ = lock.Close()
		return fmt.Errorf("open the catalogue of topics in %s: %w", cfg.Dir, err)
	}
	f.catalogue = cat
	f.syncers = journal.NewSyncers(cfg.SyncWorkers)
	f.readers = journal.NewReaders(cfg.ReadWorkers, 0)
	f.watchSpace()
	r.files = f
	if err := r.load(); err != nil {
		_ = r.Close()
		return err
	}
	return nil
}

// load opens the topics of the catalogue, several at a time.
func (r *Registry) load() error {
	f := r.files
	entries := f.catalogue.Entries()
	var jobs []func() error
	for i := range entries {
		e := &entries[i]
		s, err := complete(e.Settings)
		if err != nil {
			return fmt.Errorf("topic %s: the settings in the catalogue: %w", e.Name, err)
		}
		t := &Topic{name: e.Name, id: e.ID, created: e.CreatedMillis, stored: s, files: f, memory: &r.memory, timed: &r.timed}
		if e.Verifier != nil {
			t.login = &login{user: e.User, verifier: e.Verifier}
		}
		f.ceilings[t.id], f.ends[t.id] = e.Ceilings, e.Ends
		partitions := make([]*Partition, s.Partitions)
		for k := range partitions {
			partitions[k] = newPartition(t, k, s)
			jobs = append(jobs, func() error { return f.attach(partitions[k], s) })
		}
		t.now.Store(&topicState{settings: s, partitions: partitions})
		r.topics[t.name] = t
		r.sorted = append(r.sorted, t)
		r.partitions += len(partitions)
	}
	slices.SortFunc(r.sorted, func(a, b *Topic) int { return strings.Compare(a.name, b.name) })
	if err := f.parallel(jobs, f.cfg.OnRecover); err != nil {
		return err
	}
	for _, t := range r.sorted {
		t.noteDue()
	}
	return nil
}

// parallel runs jobs on a few goroutines and returns the first error.
func (f *files) parallel(jobs []func() error, progress func(done, total int)) error {
	var next, done atomic.Int64
	var first error
	var mu sync.Mutex
	var wait sync.WaitGroup
	for range min(len(jobs), 2*runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				err := jobs[i]()
				mu.Lock()
				if err != nil && first == nil {
					first = err
				}
				n := int(done.Add(1))
				if progress != nil {
					progress(n, len(jobs))
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return first
}

// attach makes a partition stand where its topic was before: at the end of its log, and above every offset that may have been
// given out.
func (f *files) attach(p *Partition, s codec.TopicSettings) error {
	var ceiling codec.Offset // where offsets go on
	f.mu.Lock()
	for _, list := range [][]codec.Offset{f.ceilings[p.topic.id], f.ends[p.topic.id]} {
		if p.index < len(list) {
			ceiling = list[p.index]
		}
	}
	f.mu.Unlock()
	p.files = f
	c := &p.core
	if s.Storage == codec.StorageFile || s.Storage == codec.StorageQueueFile {
		if err := f.openLog(p, s); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.noteDue()
	if c.visible != whenDurable {
		c.ceiling = ceiling
		if ceiling > c.next {
			if p.log != nil {
				c.begun = ceiling
				if err := p.declareGap(); err != nil {
					return fmt.Errorf("topic %s partition %d: declare the offsets that may have been given out: %w", p.topic.name, p.index, err)
				}
			} else {
				c.start, c.sent, c.begun = ceiling, ceiling, ceiling
				c.written, c.durable = ceiling, ceiling
			}
			c.next, c.high = ceiling, ceiling
		}
		c.bounded = true
	}
	if p.log != nil {
		p.log.Retain() // the settings may have changed since a segment was sealed
	}
	return nil
}

// reserve raises a partition's ceiling, without waiting.
func (f *files) reserve(p *Partition, to codec.Offset) {
	f.asking.Go(func() {
		err := f.raise(p, to)
		failed := codec.CodeNone
		if err != nil {
			to, failed = 0, codeOf(diskError("reserve offsets", err))
			if f.readErrors.allow() {
				f.cfg.Log.Error("offsets cannot be reserved", "topic", p.topic.name, "partition", p.index, "err", err)
			}
		}
		p.enter(time.Now().UnixMilli())
		p.core.raiseCeiling(to, failed)
		p.store()
		p.leave()
	})
}

func (f *files) raise(p *Partition, to codec.Offset) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.topic.gone {
		return nil
	}
	old := f.ceilings[p.topic.id]
	list := make([]codec.Offset, max(len(old), p.index+1, int(p.topic.stored.Partitions)))
	copy(list, old)
	list[p.index] = max(list[p.index], to)
	if err := f.put(p.topic, p.topic.stored, list, nil); err != nil {
		return err
	}
	f.ceilings[p.topic.id] = list
	delete(f.ends, p.topic.id)
	return nil
}

// put writes a topic's entry. mu is held, or the topic is not in the registry yet.
func (f *files) put(t *Topic, s codec.TopicSettings, ceilings, ends []codec.Offset) error {
	e := catalogue.Entry{Name: t.name, ID: t.id, Settings: s, CreatedMillis: t.created, Ceilings: ceilings, Ends: ends}
	if t.login != nil {
		e.User, e.Verifier = t.login.user, t.login.verifier
	}
	if err := f.catalogue.Put(e); err != nil {
		return err
	}
	t.stored = s
	return nil
}

// diskError is the error for the wire of an operation on the files of a topic.
func diskError(what string, err error) error {
	var aside *catalogue.AsideError
	var wire *codec.WireError
	switch {
	case errors.As(err, &aside):
		return codec.Errorf(codec.CodeSetAside, "%s", aside)
	case errors.As(err, &wire):
		return err
	case vfs.IsNoSpace(err):
		return codec.Errorf(codec.CodeNoSpace, "%s: %s", what, err)
	}
	return codec.Errorf(codec.CodeStorage, "%s: %s", what, err)
}

// ReserveProducerIDs returns the first of n identities of idempotent producers that were never given out before. It may wait for
// the disk. Without files it is not available: ok is false.
func (r *Registry) ReserveProducerIDs(n int64) (first int64, ok bool, err error) {
	if r.files == nil {
		return 0, false, nil
	}
	first, err = r.files.catalogue.ReserveProducerIDs(n)
	return first, true, err
}

// Stored reports whether the registry has a data directory. Then Create, Alter, Delete and Purge wait for the disk.
func (r *Registry) Stored() bool { return r.files != nil }

// Close writes and syncs what was published, and lets go of the data directory. Nothing may be published after that. It waits for
// the disk. Without files it does nothing.
func (r *Registry) Close() error {
	f := r.files
	if f == nil {
		return nil
	}
	var jobs []func() error
	r.Each(func(t *Topic) bool {
		jobs = append(jobs, func() error { return f.closeTopic(t) })
		return true
	})
	err := f.parallel(jobs, nil)
	f.syncers.Close()
	f.readers.Close()
	return errors.Join(err, f.lock.Close())
}

// closeTopic closes a topic's logs, and writes down where offsets are to go on.
func (f *files) closeTopic(t *Topic) error {
	var jobs []func() error
	for _, p := range t.Partitions() {
		if p.log != nil {
			jobs = append(jobs, func() error { return p.closeLog(codec.CodeDraining) })
		} else {
			p.enter(time.Now().UnixMilli())
			p.core.clear(codec.CodeDraining)
			p.leave()
		}
	}
	errs := []error{f.parallel(jobs, nil)}
	f.asking.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	ceilings, ends := f.ceilings[t.id], f.ends[t.id]
	if len(ceilings) > 0 && ends == nil {
		ends = make([]codec.Offset, len(ceilings))
		for i, p := range t.Partitions()[:min(len(ceilings), len(t.Partitions()))] {
			p.mu.Lock()
			ends[i] = min(p.core.next, ceilings[i])
			if p.core.state == codec.PartitionPoisoned || !p.core.bounded {
				ends[i] = ceilings[i] // it is not known where they ended, or was never opened
			}
			p.mu.Unlock()
		}
		if err := f.put(t, t.stored, ceilings, ends); err != nil {
			errs = append(errs, fmt.Errorf("topic %s: write down where its offsets go on: %w", t.name, err))
		}
	}
	return errors.Join(errs...)
}

// putSettings stores new settings of a topic.
func (f *files) putSettings(t *Topic, s codec.TopicSettings) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	ceilings, ends := f.ceilings[t.id], f.ends[t.id]
	for n := len(ceilings); n > 0 && n < int(s.Partitions); n++ {
		ceilings = append(slices.Clip(ceilings), 0)
		if ends != nil {
			ends = append(slices.Clip(ends), 0)
		}
	}
	if err := f.put(t, s, ceilings, ends); err != nil {
		return err
	}
	if ceilings != nil {
		f.ceilings[t.id] = ceilings
	}
	if ends != nil {
		f.ends[t.id] = ends
	}
	return nil
}

// delete removes all that is stored of a topic that is not served any more.
func (f *files) delete(t *Topic) error {
	for _, p := range t.Partitions() {
		if p.log != nil {
			_ = p.closeLog(codec.CodeTopicDeleted) // what could not be written is to be removed
		}
	}
	return f.forget(t)
}

// forget removes what is stored of a topic.
func (f *files) forget(t *Topic) error {
	f.mu.Lock()
	t.gone = true
	delete(f.ceilings, t.id)
	delete(f.ends, t.id)
	f.mu.Unlock()
	return f.catalogue.Delete(t.id)
}

// setAside returns the error about a topic of this name that is set aside; nil: there is none.
func (f *files) setAside(name string) error {
	for _, a := range f.catalogue.SetAside() {
		if a.Name == name {
			return codec.Errorf(codec.CodeSetAside, "%s", &catalogue.AsideError{Aside: a})
		}
	}
	return nil
}

const (
	// minReserve and reservePart are the disk's reserve: the larger of 1 GiB and 5%.
	minReserve  = 1 << 30
	reservePart = 20
)

// watchSpace looks at the free space of the data directory.
func (f *files) watchSpace() {
	space, ok := f.cfg.FS.(vfs.Spacer)
	if !ok || f.cfg.DiskReserve < 0 {
		return
	}
	free, total, err := space.Space(f.cfg.Dir)
	if err != nil {
		if f.readErrors.allow() {
			f.cfg.Log.Warn("free space unknown", "path", f.cfg.Dir, "err", err)
		}
		return
	}
	reserve := f.cfg.DiskReserve
	if reserve == 0 {
		reserve = max(minReserve, total/reservePart)
	}
	full := free < reserve
	if full != f.full.Swap(full) {
		if full {
			f.cfg.Log.Error("disk reserve reached: publishes to files are refused", "path", f.cfg.Dir, "free_bytes", free, "reserve_bytes", reserve)
		} else {
			f.cfg.Log.Info("disk reserve free again", "path", f.cfg.Dir, "free_bytes", free, "reserve_bytes", reserve)
		}
	}
	if near := free < 2*reserve; near != f.warned.Swap(near) && near && !full {
		f.cfg.Log.Warn("the disk's free space comes near to its reserve", "path", f.cfg.Dir, "free_bytes", free, "reserve_bytes", reserve)
	}
}

// Adopt gives a topic that is set aside in a data directory an entry of its own again, made from its files, under a name that
// is free. Zero settings are what its files say, or the defaults. No broker may have the directory open. It returns the settings.
func Adopt(fsys vfs.FS, dir string, log *slog.Logger, id codec.TopicID, name string, s codec.TopicSettings) (adopted codec.TopicSettings, err error) {
	if err := CheckName(name); err != nil {
		return adopted, err
	}
	err = withCatalogue(fsys, dir, log, func(cat *catalogue.Catalogue) error {
		e, err := cat.Adopt(id, name, s)
		if err == nil {
			adopted, err = complete(e.Settings)
		}
		return err
	})
	return adopted, err
}

// withCatalogue runs f on the catalogue of a data directory that no broker has open.
func withCatalogue(fsys vfs.FS, dir string, log *slog.Logger, f func(*catalogue.Catalogue) error) error {
	lock, err := journal.LockDir(fsys, dir)
	if err != nil {
		return err
	}
	cat, _, err := catalogue.Open(fsys, dir, log)
	if err == nil {
		err = f(cat)
	}
	return errors.Join(err, lock.Close())
}

// An Aside is a topic that is set aside.
type Aside = catalogue.Aside

// SetAside returns the topics of a data directory that are set aside. No broker may have it open.
func SetAside(fsys vfs.FS, dir string, log *slog.Logger) (list []Aside, err error) {
	err = withCatalogue(fsys, dir, log, func(cat *catalogue.Catalogue) error {
		list = cat.SetAside()
		return nil
	})
	return list, err
}
