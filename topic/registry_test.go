package topic

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/lightio/lightq/codec"
)

// badNames are names that no topic and no group may have.
//
// Field case F54: names that reach out of the data directory, in every spelling, and what else confuses a file system, a
// log or a terminal. Topics of files will get their directories from the same rule.
var badNames = []struct{ what, name string }{
	{"empty", ""},
	{"250 bytes", strings.Repeat("a", 250)},
	{"huge", strings.Repeat("a", 1<<20)},
	{"the directory itself", "."},
	{"its parent", ".."},
	{"out of it", "../x"},
	{"further out", "../../../x"},
	{"absolute", "/etc/x"},
	{"out by a detour", "a/../../b"},
	{"a slash", "a/b"},
	{"a slash at the end", "a/"},
	{"backslashes", `a\..\b`},
	{"a drive", `C:\x`},
	{"percent encoding", "a%2f.."},
	{"NUL", "a\x00b"},
	{"NUL behind a good name", "orders\x00"},
	{"newline", "a\nb"},
	{"newline at the end", "orders\n"},
	{"carriage return", "a\rb"},
	{"tab", "a\tb"},
	{"escape", "\x1b[2J"},
	{"a space before", " a"},
	{"a space behind", "a "},
	{"a space", " "},
	{"0xff", "\xff"},
	{"0xff within", "a\xffb"},
	{"delete", "a\x7f"},
	{"right-to-left override", "a\u202egpj.exe"},
	{"full-width letter", "ａ"},
	{"a letter with an accent", "é"},
	{"zero-width space", "a\u200bb"},
	{"overlong slash", "a\xc0\xafb"},
	{"asterisk", "*"},
	{"quote", `"`},
	{"comma", "a,b"},
	{"equals", "a=b"},
	{"tilde", "~"},
	{"dollar", "$HOME"},
}

// goodNames are names that look odd and are allowed by the rule.
var goodNames = []struct{ what, name string }{
	{"1 byte", "a"},
	{"249 bytes", strings.Repeat("z", 249)},
	{"three dots", "..."},
	{"a dot before", ".a"},
	{"a dot behind", "a."},
	{"dots before", "..a"},
	{"dots behind", "a.."},
	{"a device of another system", "CON"},
	{"a leading hyphen", "-rf"},
	{"a hyphen", "-"},
	{"an underscore", "_"},
	{"digits", "0123456789"},
	{"all of them", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"},
	{"a file's suffix", "catalogue.json"},
}

// TestF54NamesThatReachOut: field case F54. A name outside of the rule is refused on every way in, says so, and leaves
// nothing behind.
func TestF54NamesThatReachOut(t *testing.T) {
	ways := map[string]func(r *Registry, name string) error{
		"create": func(r *Registry, name string) error {
			_, _, err := r.Create(name, codec.TopicSettings{}, "", "")
			return err
		},
		"get": func(r *Registry, name string) error {
			_, err := r.Get(name)
			return err
		},
		"alter": func(r *Registry, name string) error {
			_, err := r.Alter(name, codec.TopicSettings{Partitions: 2}, testMillis)
			return err
		},
		"delete": func(r *Registry, name string) error { return r.Delete(name, testMillis) },
		"group":  func(_ *Registry, name string) error { return CheckGroupName(name) },
	}
	for _, c := range badNames {
		for way, do := range ways {
			r := NewRegistry(10)
			err := do(r, c.name)
			if !errors.Is(err, codec.CodeInvalidName) {
				t.Errorf("%s, %s: %v", c.what, way, err)
				continue
			}
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s, %s: the error is not fit for a terminal: %q", c.what, way, err)
			}
			if len(err.Error()) > 2_000 {
				t.Errorf("%s, %s: the error has %d bytes", c.what, way, len(err.Error()))
			}
			if topics, partitions := r.Count(); topics != 0 || partitions != 0 {
				t.Errorf("%s, %s: %d topics with %d partitions were left", c.what, way, topics, partitions)
			}
		}
	}
	r := NewRegistry(100)
	for _, c := range goodNames {
		topic, created, err := r.Create(c.name, codec.TopicSettings{}, "", "")
		if err != nil || !created || topic.Name() != c.name {
			t.Errorf("%s: created %v, %v", c.what, created, err)
		}
		if err := CheckGroupName(c.name); err != nil {
			t.Errorf("%s, group: %v", c.what, err)
		}
	}
	// Names that differ in case only are different topics.
	upper, created, err := r.Create("A", codec.TopicSettings{}, "", "")
	if err != nil || !created {
		t.Fatalf("A: created %v, %v", created, err)
	}
	if lower, err := r.Get("a"); err != nil || lower.ID() == upper.ID() {
		t.Errorf("a and A are one topic (%v)", err)
	}
}

func TestNameErrorsSayWhat(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{CheckName("a b"), `"a b" is not a topic name: byte 1 is " ", allowed are A-Z a-z 0-9 . _ -`},
		{CheckGroupName("a/b"), `"a/b" is not a group name: byte 1 is "/"`},
		{CheckName(".."), `".." is not a topic name`},
		{CheckName(""), "a topic name has 1 to 249 bytes, not 0"},
		{CheckGroupName(strings.Repeat("x", 250)), "a group name has 1 to 249 bytes, not 250"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v; expected %s", c.err, c.want)
		}
	}
}

// defaults are the settings of a topic for which nothing was asked.
var defaults = codec.TopicSettings{
	Storage: codec.StorageQueue, Partitions: 1, Overflow: codec.OverflowBlock, RingBytes: DefaultRingBytes,
	MaxBatchBytes: codec.DefaultMaxBatchBytes,
}

func mustCreate(t *testing.T, r *Registry, name string, s codec.TopicSettings) *Topic {
	t.Helper()
	topic, created, err := r.Create(name, s, "", "")
	if err != nil || !created {
		t.Fatalf("create %s: %v, %v", name, created, err)
	}
	return topic
}

func TestCreateIsIdempotent(t *testing.T) {
	r := NewRegistry(100)
	first := mustCreate(t, r, "t", codec.TopicSettings{})
	if s := first.Settings(); s != defaults {
		t.Fatalf("settings %+v, expected %+v", s, defaults)
	}
	for _, asked := range []codec.TopicSettings{{}, defaults, {Partitions: 1}, {RingBytes: DefaultRingBytes}} {
		again, created, err := r.Create("t", asked, "", "")
		if err != nil || created || again != first {
			t.Errorf("again with %+v: created %v, the same %v, %v", asked, created, again == first, err)
		}
	}
	// Each difference is named, alone and together with others; nothing is changed.
	for _, c := range []struct {
		asked codec.TopicSettings
		want  []string
	}{
		{codec.TopicSettings{Storage: codec.StorageDirect}, []string{"storage is queue, not direct"}},
		{codec.TopicSettings{Storage: codec.StorageFile}, []string{"storage is queue, not file"}},
		{codec.TopicSettings{Partitions: 2}, []string{"it has 1 partitions, not 2"}},
		{codec.TopicSettings{Overflow: codec.OverflowReject}, []string{"overflow is block, not reject"}},
		{codec.TopicSettings{RingBytes: 1}, []string{"ring-bytes is 67108864, not 1"}},
		{codec.TopicSettings{MaxBatchBytes: 2000}, []string{"max-batch is", "not 2000"}},
		{codec.TopicSettings{Partitions: 3, Overflow: codec.OverflowDropOldest}, []string{"it has 1 partitions, not 3", "overflow is block, not drop-oldest"}},
	} {
		_, _, err := r.Create("t", c.asked, "", "")
		if !errors.Is(err, codec.CodeTopicExists) {
			t.Errorf("%+v: %v", c.asked, err)
			continue
		}
		for _, want := range append(c.want, "topic t exists") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: the error %q does not say %q", c.asked, err, want)
			}
		}
	}
	if s := first.Settings(); s != defaults {
		t.Errorf("settings became %+v", s)
	}
	if topics, partitions := r.Count(); topics != 1 || partitions != 1 {
		t.Errorf("%d topics with %d partitions", topics, partitions)
	}
	// A topic made anew has another identity.
	if err := r.Delete("t", testMillis); err != nil {
		t.Fatal(err)
	}
	if second := mustCreate(t, r, "t", codec.TopicSettings{}); second.ID() == first.ID() {
		t.Error("the new topic has the id of the old one")
	}
}

func TestSettingsHaveLimits(t *testing.T) {
	const minRing = 2 * (MinBatchBytes + entryOverheadBytes)
	for _, c := range []struct {
		what string
		s    codec.TopicSettings
		code codec.Code
	}{
		{"file", codec.TopicSettings{Storage: codec.StorageFile}, codec.CodeInvalidSetting},
		{"queue_file", codec.TopicSettings{Storage: codec.StorageQueueFile}, codec.CodeInvalidSetting},
		{"unknown storage", codec.TopicSettings{Storage: 5}, codec.CodeInvalidSetting},
		{"unknown storage 255", codec.TopicSettings{Storage: 255}, codec.CodeInvalidSetting},
		{"unknown overflow", codec.TopicSettings{Overflow: 4}, codec.CodeInvalidSetting},
		{"most partitions", codec.TopicSettings{Partitions: MaxPartitions}, codec.CodeNone},
		{"too many partitions", codec.TopicSettings{Partitions: MaxPartitions + 1}, codec.CodeInvalidSetting},
		{"4 billion partitions", codec.TopicSettings{Partitions: 1<<32 - 1}, codec.CodeInvalidSetting},
		{"smallest max-batch", codec.TopicSettings{MaxBatchBytes: MinBatchBytes}, codec.CodeNone},
		{"smaller max-batch", codec.TopicSettings{MaxBatchBytes: MinBatchBytes - 1}, codec.CodeInvalidSetting},
		{"largest max-batch", codec.TopicSettings{MaxBatchBytes: MaxBatchBytesLimit}, codec.CodeNone},
		{"larger max-batch", codec.TopicSettings{MaxBatchBytes: MaxBatchBytesLimit + 1}, codec.CodeInvalidSetting},
		{"largest ring", codec.TopicSettings{RingBytes: MaxRingBytes}, codec.CodeNone},
		{"larger ring", codec.TopicSettings{RingBytes: MaxRingBytes + 1}, codec.CodeInvalidSetting},
		{"huge ring", codec.TopicSettings{RingBytes: 1<<64 - 1}, codec.CodeInvalidSetting},
		{"ring of two batches", codec.TopicSettings{MaxBatchBytes: MinBatchBytes, RingBytes: minRing}, codec.CodeNone},
		{"ring below two batches", codec.TopicSettings{MaxBatchBytes: MinBatchBytes, RingBytes: minRing - 1}, codec.CodeInvalidSetting},
		{"ring for the default max-batch", codec.TopicSettings{RingBytes: 1 << 20}, codec.CodeInvalidSetting},
	} {
		r := NewRegistry(MaxPartitions)
		topic, _, err := r.Create("t", c.s, "", "")
		if c.code == codec.CodeNone {
			if err != nil {
				t.Errorf("%s: %v", c.what, err)
			} else if n := len(topic.Partitions()); n != int(topic.Settings().Partitions) {
				t.Errorf("%s: %d partitions", c.what, n)
			}
			continue
		}
		if !errors.Is(err, c.code) {
			t.Errorf("%s: %v, expected %s", c.what, err, c.code.String())
		}
		if topics, partitions := r.Count(); topics != 0 || partitions != 0 {
			t.Errorf("%s: %d topics with %d partitions are there", c.what, topics, partitions)
		}
	}
}

func TestAlterGrowsOnly(t *testing.T) {
	r := NewRegistry(10)
	topic := mustCreate(t, r, "t", codec.TopicSettings{Partitions: 2})
	mustCreate(t, r, "other", codec.TopicSettings{Partitions: 2})
	before := topic.Partitions()
	id := topic.ID()
	if _, err := topic.Partition(2); !errors.Is(err, codec.CodeUnknownPartition) || !strings.Contains(err.Error(), "partitions 0 to 1, not 2") {
		t.Errorf("partition 2 of 2: %v", err)
	}
	got, err := r.Alter("t", codec.TopicSettings{
		Partitions: 4, Overflow: codec.OverflowReject, RingBytes: 8 << 20, MaxBatchBytes: 1 << 20,
	}, testMillis)
	if err != nil || got != topic {
		t.Fatalf("alter: %v, the same topic: %v", err, got == topic)
	}
	want := codec.TopicSettings{
		Storage: codec.StorageQueue, Partitions: 4, Overflow: codec.OverflowReject, RingBytes: 8 << 20, MaxBatchBytes: 1 << 20,
	}
	if s := topic.Settings(); s != want || topic.ID() != id {
		t.Errorf("settings %+v, expected %+v", s, want)
	}
	after := topic.Partitions()
	if len(after) != 4 || !slices.Equal(after[:2], before) {
		t.Errorf("%d partitions, the old ones stay: %v", len(after), slices.Equal(after[:2], before))
	}
	for i, p := range after {
		if p.Index() != i || p.Topic() != topic || p.core.settings != want || p.maxBatch.Load() != 1<<20 {
			t.Errorf("partition %d: index %d, settings %+v, max-batch %d", i, p.Index(), p.core.settings, p.maxBatch.Load())
		}
		if got, err := topic.Partition(uint32(i)); got != p || err != nil {
			t.Errorf("partition %d: %v", i, err)
		}
	}
	if _, err := topic.Partition(1<<32 - 1); !errors.Is(err, codec.CodeUnknownPartition) {
		t.Errorf("partition 4294967295: %v", err)
	}
	// Nothing asked, nothing changed.
	if _, err := r.Alter("t", codec.TopicSettings{}, testMillis); err != nil || topic.Settings() != want {
		t.Errorf("alter without a change: %v, %+v", err, topic.Settings())
	}
	for _, c := range []struct {
		what   string
		name   string
		change codec.TopicSettings
		code   codec.Code
		says   string
	}{
		{"fewer partitions", "t", codec.TopicSettings{Partitions: 3}, codec.CodeInvalidSetting, "topic t has 4 partitions, and they only grow: not to 3"},
		{"another storage", "t", codec.TopicSettings{Storage: codec.StorageDirect}, codec.CodeInvalidSetting, "cannot be changed"},
		{"a storage to come", "t", codec.TopicSettings{Storage: codec.StorageFile}, codec.CodeInvalidSetting, "cannot be changed"},
		{"unknown overflow", "t", codec.TopicSettings{Overflow: 9}, codec.CodeInvalidSetting, "overflow 9"},
		{"ring too small for max-batch", "t", codec.TopicSettings{RingBytes: 1 << 20}, codec.CodeInvalidSetting, "two batches of max-batch 1048576"},
		{"max-batch too large for the ring", "t", codec.TopicSettings{MaxBatchBytes: 4 << 20}, codec.CodeInvalidSetting, "two batches"},
		{"more than the broker's limit", "t", codec.TopicSettings{Partitions: 9}, codec.CodeTooManyTopics, "limit is 10"},
		{"more than a topic's limit", "t", codec.TopicSettings{Partitions: MaxPartitions + 1}, codec.CodeInvalidSetting, "limit"},
		{"no such topic", "x", codec.TopicSettings{Partitions: 2}, codec.CodeUnknownTopic, "there is no topic x"},
	} {
		_, err := r.Alter(c.name, c.change, testMillis)
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, expected %s and %q", c.what, err, c.code.String(), c.says)
		}
		if s := topic.Settings(); s != want {
			t.Errorf("%s: settings became %+v", c.what, s)
		}
		if topics, partitions := r.Count(); topics != 2 || partitions != 6 {
			t.Errorf("%s: %d topics with %d partitions", c.what, topics, partitions)
		}
	}
	// Up to the limit exactly.
	if _, err := r.Alter("t", codec.TopicSettings{Partitions: 8, Storage: codec.StorageQueue}, testMillis); err != nil {
		t.Error(err)
	}
}

func TestPartitionsAreLimitedOverAllTopics(t *testing.T) {
	r := NewRegistry(5)
	mustCreate(t, r, "a", codec.TopicSettings{Partitions: 3})
	mustCreate(t, r, "b", codec.TopicSettings{Partitions: 2})
	if _, _, err := r.Create("c", codec.TopicSettings{}, "", ""); !errors.Is(err, codec.CodeTooManyTopics) ||
		!strings.Contains(err.Error(), "holds 5 partitions and its limit is 5") {
		t.Errorf("a sixth partition: %v", err)
	}
	if _, created, err := r.Create("a", codec.TopicSettings{}, "", ""); err != nil || created {
		t.Errorf("a topic that exists, at the limit: %v", err)
	}
	if err := r.Delete("b", testMillis); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Create("c", codec.TopicSettings{Partitions: 3}, "", ""); !errors.Is(err, codec.CodeTooManyTopics) {
		t.Errorf("one partition too many: %v", err)
	}
	mustCreate(t, r, "c", codec.TopicSettings{Partitions: 2})
	if topics, partitions := r.Count(); topics != 2 || partitions != 5 {
		t.Errorf("%d topics with %d partitions", topics, partitions)
	}
}

func TestDeleteInUse(t *testing.T) {
	r := NewRegistry(10)
	topic := mustCreate(t, r, "t", codec.TopicSettings{Partitions: 2, MaxBatchBytes: 1 << 10, RingBytes: 4 << 10})
	pool := codec.NewSlabPool(0)
	var sink recordSink
	var pubs [2]Publisher
	var curs [2]Cursor
	for i, part := range topic.Partitions() {
		if _, _, err := part.OpenPublisher(&pubs[i], &sink, 1, codec.LevelDefault); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := part.Attach(&curs[i], &sink, []string{"", "g"}[i], codec.FromEarliest, 0, testMillis); err != nil {
			t.Fatal(err)
		}
		for n := range uint64(10) { // more than fit: some wait
			part.Publish(&pubs[i], 1, published(pool, n, sealedBatch(nil, int64(n), 1, 1000)), testMillis)
		}
	}
	if n := len(sink.results); n == 0 || n == 20 {
		t.Fatalf("%d results before the deletion", n)
	}
	if err := r.Delete("t", testMillis); err != nil {
		t.Fatal(err)
	}
	if n := len(sink.results); n != 20 {
		t.Errorf("%d results for 20 batches", n)
	}
	if n := pool.InUseBytes(); n != 0 {
		t.Errorf("%d bytes of slabs have leaked", n)
	}
	for i := range curs {
		if curs[i].Cut() != codec.CodeTopicDeleted || !slices.Contains(sink.woken, &curs[i]) {
			t.Errorf("cursor %d: %s, woken %v", i, curs[i].Cut().String(), slices.Contains(sink.woken, &curs[i]))
		}
		curs[i].Detach(testMillis)
	}
	if err := r.Delete("t", testMillis); !errors.Is(err, codec.CodeUnknownTopic) {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := r.Get("t"); !errors.Is(err, codec.CodeUnknownTopic) {
		t.Errorf("get: %v", err)
	}
	if _, err := r.Alter("t", codec.TopicSettings{Partitions: 3}, testMillis); !errors.Is(err, codec.CodeUnknownTopic) {
		t.Errorf("alter: %v", err)
	}
	// The name is free; the old topic's handles do not reach the new one.
	again := mustCreate(t, r, "t", codec.TopicSettings{})
	part := topic.Partitions()[0]
	part.Publish(&pubs[0], 1, published(pool, 10, sealedBatch(nil, 10, 1, 100)), testMillis)
	if last := sink.results[len(sink.results)-1]; last.Code != codec.CodeTopicDeleted {
		t.Errorf("a batch for the old topic: %s", last.Code.String())
	}
	if i := again.Partitions()[0].Info(); i.RecordsIn != 0 {
		t.Errorf("the new topic has %+v", i)
	}
}

func TestListPages(t *testing.T) {
	r := NewRegistry(1000)
	var names []string
	for i := range 25 {
		names = append(names, fmt.Sprintf("t%d", i))
	}
	names = append(names, "-", "A", "Z", "_", "a.b")
	for _, name := range names {
		mustCreate(t, r, name, codec.TopicSettings{})
	}
	slices.Sort(names) // by bytes
	for _, limit := range []int{1, 2, 7, 29, 30, 31, 1000} {
		var got []string
		after := ""
		for pages := 1; ; pages++ {
			topics, more := r.List(after, limit)
			if len(topics) > limit || more && len(topics) != limit {
				t.Fatalf("limit %d: %d topics, more %v", limit, len(topics), more)
			}
			for _, topic := range topics {
				got = append(got, topic.Name())
			}
			if !more {
				if want := (len(names) + limit - 1) / limit; pages != want {
					t.Errorf("limit %d: %d pages, expected %d", limit, pages, want)
				}
				break
			}
			if pages > len(names) {
				t.Fatalf("limit %d: there is no end of pages", limit)
			}
			after = topics[len(topics)-1].Name()
		}
		if !slices.Equal(got, names) {
			t.Errorf("limit %d: %v", limit, got)
		}
	}
	// A name that is not there, before all, between, behind all.
	for after, want := range map[string]int{"": 30, "!": 30, "a": len(names) - slices.Index(names, "a.b"), "t9": 0, "zzz": 0} {
		topics, more := r.List(after, 100)
		if len(topics) != want || more {
			t.Errorf("after %q: %d topics, more %v; expected %d", after, len(topics), more, want)
		}
	}
	if topics, more := NewRegistry(1).List("", 10); len(topics) != 0 || more {
		t.Errorf("an empty registry lists %d topics, more %v", len(topics), more)
	}
}

func TestEachStops(t *testing.T) {
	r := NewRegistry(10)
	for i := range 5 {
		mustCreate(t, r, fmt.Sprint("t", i), codec.TopicSettings{})
	}
	n := 0
	r.Each(func(topic *Topic) bool {
		n++
		if err := r.Delete(topic.Name(), testMillis); err != nil { // the registry may be used meanwhile
			t.Error(err)
		}
		return n < 3
	})
	if topics, _ := r.Count(); n != 3 || topics != 2 {
		t.Errorf("%d calls, %d topics left", n, topics)
	}
}

func TestCredentials(t *testing.T) {
	r := NewRegistry(10)
	topic, _, err := r.Create("t", codec.TopicSettings{}, "alice", "secret")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user, password string
		ok             bool
	}{
		{"alice", "secret", true},
		{"alice", "Secret", false},
		{"alice", "", false},
		{"", "", false},
		{"", "secret", false},
		{"bob", "secret", false},
		{"alices", "ecret", false}, // where one ends and the other begins counts
		{"alic", "esecret", false},
		{"secret", "alice", false},
		{"alice", "secret\x00", false},
	} {
		err := topic.CheckLogin(c.user, c.password)
		if c.ok && err != nil || !c.ok && !errors.Is(err, codec.CodeNotAllowed) {
			t.Errorf("%q, %q: %v", c.user, c.password, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error tells the password: %v", err)
		}
		_, created, err := r.Create("t", codec.TopicSettings{}, c.user, c.password)
		if same := c.ok || c.user+c.password == ""; created || same != (err == nil) || err != nil && !errors.Is(err, codec.CodeTopicExists) {
			t.Errorf("created again with %q, %q: %v, %v", c.user, c.password, created, err)
		}
	}
	open := mustCreate(t, r, "open", codec.TopicSettings{})
	if err := open.CheckLogin("anyone", "anything"); err != nil {
		t.Errorf("a topic without credentials: %v", err)
	}
	// Whoever gives credentials must not believe that a topic is protected which is not.
	if _, _, err := r.Create("open", codec.TopicSettings{}, "alice", "secret"); !errors.Is(err, codec.CodeTopicExists) {
		t.Errorf("a topic without credentials, created again with some: %v", err)
	}
	other, _, err := r.Create("other", codec.TopicSettings{}, "alice", "secret")
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(other.login.digest, topic.login.digest) {
		t.Error("the same credentials have the same digest: there is no salt")
	}
}

func TestQueueSize(t *testing.T) {
	topic := memoryTopic("t", codec.TopicSettings{Partitions: 2, RingBytes: 1 << 20, MaxBatchBytes: 1 << 10, Overflow: codec.OverflowBlock})
	pool := codec.NewSlabPool(0)
	var sink recordSink
	for _, part := range topic.Partitions() {
		var p Publisher
		if _, _, err := part.OpenPublisher(&p, &sink, 1, codec.LevelDefault); err != nil {
			t.Fatal(err)
		}
		for n := range uint64(4) {
			part.Publish(&p, 1, published(pool, n, sealedBatch(nil, 0, 5, 200)), testMillis)
		}
	}
	want := func(n uint64) {
		t.Helper()
		got := uint64(0)
		for _, p := range topic.Partitions() {
			got += p.Info().QueueSize
		}
		if got != n {
			t.Errorf("queue size %d, expected %d", got, n)
		}
	}
	want(40) // kept
	part := topic.Partitions()[0]
	var slow, fast Cursor
	for i, cur := range []*Cursor{&slow, &fast} {
		if _, _, _, err := part.Attach(cur, &sink, []string{"slow", "fast"}[i], codec.FromEarliest, 0, testMillis); err != nil {
			t.Fatal(err)
		}
	}
	want(40)
	fast.Grant(1000, testMillis)
	want(40) // the slowest group of the partition
	slow.Grant(1, testMillis)
	want(35) // given out to the member is out of the queue
	var taken Taken
	slow.Take(&taken, 1000, testMillis)
	releaseTaken(taken.Batches)
	want(35)
	for _, p := range topic.Partitions() {
		p.remove(testMillis)
	}
	if n := pool.InUseBytes(); n != 0 {
		t.Errorf("%d bytes of slabs have leaked", n)
	}
}

func TestGroupsAreLimited(t *testing.T) {
	part := memoryTopic("t", codec.TopicSettings{Partitions: 1, RingBytes: 1 << 20, MaxBatchBytes: 1 << 10}).Partitions()[0]
	var sink recordSink
	join := func(group string) error {
		_, _, _, err := part.Attach(&Cursor{}, &sink, group, codec.FromEarliest, 0, testMillis)
		return err
	}
	for i := range maxGroups {
		if err := join(fmt.Sprint("g", i)); err != nil {
			t.Fatalf("group %d: %v", i, err)
		}
	}
	if err := join("one-more"); !errors.Is(err, codec.CodeTooManyHandles) {
		t.Errorf("one group too many: %v", err)
	}
	if err := join("g0"); err != nil {
		t.Errorf("another member, at the limit: %v", err)
	}
	if err := join(""); err != nil {
		t.Errorf("a sub subscription, at the limit: %v", err)
	}
	if n := part.Info().Subscriptions; n != maxGroups+2 {
		t.Errorf("%d subscriptions, expected %d", n, maxGroups+2)
	}
}
