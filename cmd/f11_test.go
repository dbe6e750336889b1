package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// fill makes so many topics in files, with records in each, and ends the broker by SIGKILL, so that there is something to recover.
func fill(t *testing.T, h home, topics, records int) {
	t.Helper()
	p := h.start(t).ready()
	c := dial(t, h.server())
	for i := range topics {
		name := fmt.Sprintf("topic-%d", i)
		s := fileTopic
		s.SegmentBytes = 64 << 10
		createTopic(t, c, name, s)
		producer, err := c.Producer(t.Context(), name, client.Idempotent())
		if err != nil {
			t.Fatal(err)
		}
		publishAll(t, producer, 0, records)
		if err := producer.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.kill()
}

// TestF11KilledWhileStarting: F11. A broker that is killed while it recovers leaves files behind that the next one cannot read. Here
// it is killed at every stage of that, again and again, and in the end all topics are there with all that they held.
func TestF11KilledWhileStarting(t *testing.T) {
	topics, kills, records, most := 20, 12, 50, 60 // milliseconds: such a start takes 20 or more
	if os.Getenv("LIGHTQ_SOAK") != "" {
		topics, kills, records, most = 200, 40, 500, 300
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	h := newHome(t)
	fill(t, h, topics, records)
	early := 0
	for range kills {
		p := h.start(t)
		timer := time.AfterFunc(time.Duration(1+rng.IntN(most))*time.Millisecond, func() { _ = p.cmd.Process.Kill() })
		if code := p.wait(); code != -1 {
			t.Fatalf("it ended by itself with %d:\n%s", code, p.text())
		}
		timer.Stop()
		if p.stdout.text() == "" {
			early++
		}
	}
	t.Logf("%d of %d were killed before they were ready", early, kills)
	p := h.start(t).ready()
	for _, bad := range []string{"level=error", "damage", "set aside"} {
		if strings.Contains(p.text(), bad) {
			t.Errorf("the log has %q:\n%s", bad, p.text())
		}
	}
	c := dial(t, h.server())
	for i := range topics {
		readAll(t, c, fmt.Sprintf("topic-%d", i), records)
	}
}

// A snapshot is the contents of all files below a directory.
type snapshot map[string][]byte

func snapshotOf(t *testing.T, dir string) snapshot {
	t.Helper()
	s := snapshot{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		s[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// restore makes dir what it was.
func (s snapshot) restore(t *testing.T, dir string) {
	t.Helper()
	err := os.RemoveAll(dir)
	for path, b := range s {
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, b, 0o640))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestF11EmptyStateFiles: F11. Each file of state is empty in turn, as a rewrite in place leaves it. The broker starts, and serves what
// the file was about from the version before, with a warning; or, where there is none, it sets that one topic aside, says so, and touches
// nothing of it: with the file in its place again all is as before.
func TestF11EmptyStateFiles(t *testing.T) {
	h := newHome(t)
	const topics, records = 3, 400
	fill(t, h, topics, records)
	p := h.start(t).ready()
	c := dial(t, h.server())
	if _, err := c.Alter(t.Context(), "topic-0", client.TopicSettings{RetentionBytes: 1 << 40}); err != nil { // now it has a version before
		t.Fatal(err)
	}
	for name, s := range map[string]client.TopicSettings{"ring": {Storage: codec.StorageQueue}, "both": {Storage: codec.StorageQueueFile}} {
		s.Partitions = 1
		createTopic(t, c, name, s)
		producer, err := c.Producer(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		publishAll(t, producer, 0, 10)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, p.text())
	}

	whole := snapshotOf(t, h.dir)
	var fell, aside int
	for path, b := range whole {
		if strings.HasSuffix(path, ".seg") || len(b) == 0 {
			continue // data, not state
		}
		name, err := filepath.Rel(h.dir, path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		p := h.start(t).ready()
		c := dial(t, h.server())
		list, err := c.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for _, e := range list {
			there[e.Name] = true
		}
		for i := range topics {
			if topic := fmt.Sprintf("topic-%d", i); there[topic] {
				readAll(t, c, topic, records)
			}
		}
		_, hasOld := whole[path+".old"]
		switch lost := topics + 2 - len(list); {
		case filepath.Base(path) == "topic" && !hasOld:
			aside++
			dir := filepath.Dir(path)
			if lost != 1 {
				t.Errorf("%s is empty: %d topics are missing:\n%s", name, lost, p.stderr.text())
			}
			p.says("set aside")
			p.says(dir)
			for other, b := range whole {
				if now, err := os.ReadFile(other); filepath.Dir(filepath.Dir(other)) == dir && (err != nil || !bytes.Equal(now, b)) {
					t.Errorf("%s is empty: %s was touched: %v", name, other, err)
				}
			}
		case lost != 0:
			t.Errorf("%s is empty: %d topics are missing:\n%s", name, lost, p.stderr.text())
		case filepath.Base(path) == "topic":
			fell++
			p.says("level=warning")
			p.says(path)
		}
		producer, err := c.Producer(t.Context(), list[0].Name, client.Idempotent()) // ids of producers go on
		if err != nil {
			t.Fatalf("%s is empty: %v\n%s", name, err, p.stderr.text())
		}
		if err := producer.PublishValue(t.Context(), 0, []byte("one more")); err != nil {
			t.Fatal(err)
		}
		if err := producer.Close(t.Context()); err != nil {
			t.Errorf("%s is empty: %v", name, err)
		}
		p.kill()
		whole.restore(t, h.dir)
	}
	if fell == 0 || aside == 0 {
		t.Errorf("%d entries had a version before, and %d had none: there must be both", fell, aside)
	}
	h.start(t).ready()
	c = dial(t, h.server())
	for i := range topics {
		readAll(t, c, fmt.Sprintf("topic-%d", i), records)
	}
}
