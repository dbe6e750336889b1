package cmd

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// known is what a client knows of a topic from the broker's answers.
type known struct {
	storage    codec.Storage
	partitions uint32
	password   string // of user "u"; empty: none
	confirmed  uint64 // records, all in partition 0
}

// A history is the topics that there have to be, from the broker's answers. What was under way when the broker was killed may have
// happened or not.
type history struct {
	t      *testing.T
	rng    *rand.Rand
	h      home
	made   int
	topics map[string]known

	pending string // topic that the last request was about, if it got no answer
	after   *known // what it would have become; nil: gone
}

var storages = []codec.Storage{codec.StorageFile, codec.StorageQueue, codec.StorageQueueFile, codec.StorageDirect}

// create creates a topic, with credentials by the JSON protocol or without.
func (y *history) create(c *client.Client) error {
	y.made++
	name := fmt.Sprintf("topic-%d", y.made)
	k := known{storage: storages[y.rng.IntN(len(storages))], partitions: 1 + y.rng.Uint32N(8)}
	if y.rng.IntN(4) == 0 {
		k.password = fmt.Sprintf("secret-%d", y.made)
	}
	y.pending, y.after = name, &k
	if k.password == "" {
		if _, err := c.CreateTopic(y.t.Context(), name, client.TopicSettings{Storage: k.storage, Partitions: k.partitions}); err != nil {
			return err
		}
	} else {
		reply, err := y.h.askJSON(map[string]any{
			"cmd": "create_topic", "topic": name, "broker_type": k.storage.String(), "partitions": k.partitions, "user_id": "u", "password": k.password,
		})
		if err != nil {
			return err
		}
		if reply["status"] != "ok" {
			y.t.Fatalf("create %s: %v", name, reply)
		}
	}
	y.answered()
	return nil
}

func (y *history) answered() {
	if y.after == nil {
		delete(y.topics, y.pending)
	} else {
		y.topics[y.pending] = *y.after
	}
	y.pending, y.after = "", nil
}

func (y *history) any() string {
	names := slices.Sorted(maps.Keys(y.topics))
	return names[y.rng.IntN(len(names))]
}

// change does one thing, and fails when the broker is dead.
func (y *history) change(c *client.Client) error {
	what := y.rng.IntN(6)
	if len(y.topics) < 5 {
		what = 0
	} else if len(y.topics) > 30 {
		what = 2
	}
	switch what {
	case 0, 1:
		return y.create(c)
	case 2:
		y.pending, y.after = y.any(), nil
		if err := c.Delete(y.t.Context(), y.pending); err != nil {
			return err
		}
		y.answered()
	case 3:
		name := y.any()
		k := y.topics[name]
		k.partitions++
		y.pending, y.after = name, &k
		if _, err := c.Alter(y.t.Context(), name, client.TopicSettings{Partitions: k.partitions}); err != nil {
			return err
		}
		y.answered()
	default:
		name := y.any()
		p, err := c.Producer(y.t.Context(), name, client.Partitions(0))
		if err != nil {
			return err
		}
		for range 100 {
			if err := p.PublishValue(y.t.Context(), 0, []byte("something")); err != nil {
				return err
			}
		}
		if err := p.Flush(y.t.Context()); err != nil {
			return err
		}
		k := y.topics[name]
		k.confirmed += 100
		y.topics[name] = k
		return p.Close(y.t.Context())
	}
	return nil
}

// compare looks whether the broker has what it has to have.
func (y *history) compare(round int, p *process) {
	y.t.Helper()
	c := dial(y.t, y.h.server())
	list, err := c.List(y.t.Context())
	if err != nil {
		y.t.Fatalf("round %d: %v", round, err)
	}
	there := map[string]bool{}
	for _, e := range list {
		there[e.Name] = true
	}
	fault := func(format string, args ...any) {
		y.t.Fatalf("round %d: %s\n%s", round, fmt.Sprintf(format, args...), p.text())
	}
	check := func(name string, k known) error {
		d, err := c.Describe(y.t.Context(), name)
		if err != nil {
			return err
		}
		if d.Settings.Storage != k.storage || uint32(len(d.Partitions)) != k.partitions {
			return fmt.Errorf("topic %s has storage %s and %d partitions: want %s, %d", name, d.Settings.Storage, len(d.Partitions), k.storage, k.partitions)
		}
		for i, info := range d.Partitions {
			if info.Damaged > 0 || info.State != codec.PartitionOK {
				return fmt.Errorf("topic %s partition %d: %+v", name, i, info)
			}
		}
		if high := d.Partitions[0].High; uint64(high) < k.confirmed && k.storage == codec.StorageFile {
			return fmt.Errorf("topic %s ends at offset %d of %d that were confirmed", name, high, k.confirmed)
		}
		for _, password := range []string{"", "wrong", k.password} {
			reply, err := y.h.askJSON(map[string]any{"cmd": "join", "topic": name, "type": "pub", "user_id": "u", "password": password})
			if err != nil {
				return err
			}
			if may := reply["status"] == "ok"; may != (k.password == "" || password == k.password) {
				return fmt.Errorf("topic %s with password %q, user's %q: %v", name, password, k.password, reply)
			}
		}
		return nil
	}
	if name := y.pending; name != "" {
		before, was := y.topics[name]
		switch {
		case there[name] && y.after != nil && check(name, *y.after) == nil:
			y.topics[name] = *y.after
		case there[name] && !was:
			fault("topic %s, whose creation got no answer, is neither there nor not there: %v", name, check(name, *y.after))
		case !there[name] && was && y.after != nil:
			fault("topic %s is gone: it was being altered", name)
		case !there[name]:
			delete(y.topics, name)
		default: // it did not happen: then all is as before
			if err := check(name, before); err != nil {
				fault("topic %s, after a change without an answer: %v", name, err)
			}
		}
		y.pending, y.after = "", nil
	}
	for name, k := range y.topics {
		if !there[name] {
			fault("topic %s is gone: %+v", name, k)
		}
		if err := check(name, k); err != nil {
			fault("%v", err)
		}
	}
	if len(list) != len(y.topics) {
		fault("the broker has %d topics, and there should be %d: %v", len(list), len(y.topics), list)
	}
}

// TestF02KillsAndTheCatalogue: F02. A few kill -9s, and the list of topics is empty for good. Here topics of every storage, with and
// without credentials, are created, altered, deleted and published to while the broker is killed: after each restart there is what was
// answered, and nothing else.
func TestF02KillsAndTheCatalogue(t *testing.T) {
	rounds, first := 8, 10
	if os.Getenv("LIGHTQ_SOAK") != "" {
		rounds, first = 50, 20
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	y := &history{t: t, rng: rand.New(rand.NewPCG(seed, 0)), h: newHome(t), topics: map[string]known{}}
	p := y.h.start(t).ready()
	c := dial(t, y.h.server(), client.WithoutReconnect())
	for range first {
		if err := y.create(c); err != nil {
			t.Fatal(err)
		}
	}
	changes := 0
	for round := range rounds {
		life := time.Duration(y.rng.Int64N(int64(400 * time.Millisecond)))
		kill := func() { _ = p.cmd.Process.Kill() }
		var timer *time.Timer
		if round > 0 { // the first goes on until enough has happened to show anything
			timer = time.AfterFunc(life, kill)
		}
		c, err := client.Dial(t.Context(), y.h.server(), client.WithoutReconnect())
		for err == nil {
			if err = y.change(c); err == nil {
				changes++
			}
			if timer == nil && changes >= rounds {
				timer = time.AfterFunc(life, kill)
			}
		}
		if timer == nil {
			t.Fatalf("%d changes, and nobody has killed the broker: %v\n%s", changes, err, p.text())
		}
		p.wait() // by nothing but SIGKILL
		var refused *codec.WireError
		if p.cmd.ProcessState.ExitCode() != -1 || errors.As(err, &refused) {
			t.Fatalf("round %d: %v\n%s", round, err, p.text())
		}
		if c != nil {
			_ = c.Close() // its broker is dead
		}
		timer.Stop()
		p = y.h.start(t).ready()
		y.compare(round, p)
	}
	p.signal(os.Interrupt)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.text())
	}
	y.compare(rounds, y.h.start(t).ready())
}
