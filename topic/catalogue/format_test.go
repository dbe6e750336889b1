package catalogue

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lightio/lightq/codec"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func goldenEntry() Entry {
	return Entry{
		Name: "orders.eu", ID: codec.TopicID{0x4c, 0x51, 0x10, 15: 0xff}, CreatedMillis: 1_790_000_000_123,
		Settings: codec.TopicSettings{
			Storage: codec.StorageQueueFile, Partitions: 3, Overflow: codec.OverflowDropOldest, RingBytes: 64 << 20, MaxBatchBytes: 1 << 20,
			Sync: codec.SyncInterval, SyncMillis: 10, RetentionBytes: 1 << 40, RetentionMillis: codec.RetentionUnlimited, SegmentBytes: 128 << 20,
		},
		User: "ann", Verifier: newVerifier("pencil", []byte("0123456789abcdef"), 4096),
		Ceilings: []codec.Offset{0, 1 << 20, 1<<62 + 1}, Ends: []codec.Offset{0, 77, 1<<62 + 1},
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", file, diff)
	}
}

// The bytes on disk, which other versions of the program read.
func TestGolden(t *testing.T) {
	full := goldenEntry()
	small := Entry{Name: "a", ID: testID(1), Settings: codec.TopicSettings{Storage: codec.StorageFile, Partitions: 1}}
	for name, e := range map[string]Entry{"topic": full, "topic-small": small} {
		b, err := appendEntry(nil, &e)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, b)
		back, err := parseEntry(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, back); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	b, err := appendProducerIDs(nil, 12000)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "producer-ids", b)
	if next, err := parseProducerIDs(b); err != nil || next != 12000 {
		t.Errorf("next %d, error %v", next, err)
	}
}

func TestStrangeEntries(t *testing.T) {
	e := goldenEntry()
	sound, err := appendEntry(nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := bytes.Cut(sound, []byte("\n"))
	// seal puts the right first line before a body.
	seal := func(version uint64, body string) []byte {
		return append([]byte(firstLine(entryMagic, version, len(body), checksum(body))), body...)
	}
	change := func(from, to string) []byte {
		s := strings.Replace(string(body), from, to, 1)
		if s == string(body) {
			t.Fatalf("no %s in the entry", from)
		}
		return seal(1, s)
	}
	for name, b := range map[string][]byte{
		"a newer version":         seal(2, string(body)),
		"an unknown field":        change(`"name"`, `"replicas": 3, "name"`),
		"an unknown setting":      change(`"partitions"`, `"replicas": 3, "partitions"`),
		"an unknown storage":      change("queue_file", "tape"),
		"an unknown overflow":     change("drop-oldest", "drop-newest"),
		"an unknown sync":         change("interval", "never"),
		"no partitions":           change(`"partitions": 3`, `"partitions": 0`),
		"many partitions":         change(`"partitions": 3`, `"partitions": 4097`),
		"a short id":              change(`"id": "4c51`, `"id": "51`),
		"an id in capitals":       change(`"id": "4c51`, `"id": "4C51`),
		"a negative ceiling":      change("1048576", "-1"),
		"one ceiling too few":     change("1048576,", ""),
		"an end too few":          change("    77,\n", ""),
		"a negative end":          change("    77", "    -77"),
		"an end above":            change("    77", "    1048577"),
		"no name":                 change("orders.eu", ""),
		"a long name":             change("orders.eu", strings.Repeat("n", 250)),
		"no salt":                 change("MDEyMzQ1Njc4OWFiY2RlZg==", ""),
		"no iterations":           change("4096", "0"),
		"iterations without end":  change("4096", "16777217"),
		"a number out of range":   change(`"partitions": 3`, `"partitions": 4294967299`),
		"something behind":        seal(1, string(body)+"{}"),
		"no object":               seal(1, "[]"),
		"nothing":                 seal(1, ""),
		"a storage without name":  change("queue_file", "unknown"),
		"a fractional created at": change("1790000000123", "1.5"),
	} {
		_, err := parseEntry(b)
		if !errors.As(err, new(*strangeError)) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	for name, b := range map[string][]byte{
		"empty":           nil,
		"zeros":           make([]byte, len(sound)),
		"cut":             sound[:len(sound)-1],
		"longer":          append(bytes.Clone(sound), '\n'),
		"no first line":   body,
		"a flipped bit":   bytes.Replace(sound, []byte("orders"), []byte("orderr"), 1),
		"another magic":   bytes.Replace(sound, []byte("lightq-topic"), []byte("lightq-topik"), 1),
		"a field more":    bytes.Replace(sound, []byte("\n"), []byte(" x\n"), 1),
		"a sign":          bytes.Replace(sound, []byte("lightq-topic 1"), []byte("lightq-topic +1"), 1),
		"a leading zero":  bytes.Replace(sound, []byte("lightq-topic 1"), []byte("lightq-topic 01"), 1),
		"an endless line": bytes.Repeat([]byte("x"), 1<<16),
	} {
		_, err := parseEntry(b)
		if !errors.As(err, new(*damagedError)) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// Every setting is stored, and every one of another topic's can take precedence: no field was forgotten.
func TestEverySetting(t *testing.T) {
	s := goldenEntry().Settings
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the golden entry has no %s", v.Type().Field(i).Name)
		}
	}
	if back, err := settingsFromFile(settingsToFile(s)); err != nil || back != s {
		t.Errorf("error %v: stored as %+v, read as %+v", err, s, back)
	}
	if got := (codec.TopicSettings{}).With(s); got != s {
		t.Errorf("over nothing: %+v", got)
	}
	if got := s.With(codec.TopicSettings{}); got != s {
		t.Errorf("under nothing: %+v", got)
	}
}

// The exchange of RFC 7677, section 3: what is stored proves the client's answer and gives the server's.
func TestVerifier(t *testing.T) {
	v := newVerifier("pencil", unbase64(t, "W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
	message := []byte("n=user,r=rOprNGfwEbeRWgbNEkqO," +
		"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096," +
		"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
	key := unbase64(t, "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
	for i, b := range mac(v.StoredKey, message) {
		key[i] ^= b
	}
	if got := sum(key); !bytes.Equal(got, v.StoredKey) {
		t.Errorf("the client's key has the digest %x, stored is %x", got, v.StoredKey)
	}
	if got, want := mac(v.ServerKey, message), unbase64(t, "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="); !bytes.Equal(got, want) {
		t.Errorf("the server's signature is %x, not %x", got, want)
	}
	if !v.Check("pencil") || v.Check("pencils") || v.Check("") {
		t.Error("Check does not tell the password from others")
	}
	w := NewVerifier("pencil")
	if bytes.Equal(w.Salt, NewVerifier("pencil").Salt) || !w.Check("pencil") || w.check() != nil {
		t.Error("a new verifier has no salt of its own, or is not sound")
	}
}

// Whatever the bytes are, what was understood is encoded to something that means the same.
func FuzzEntry(f *testing.F) {
	e := goldenEntry()
	sound, err := appendEntry(nil, &e)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sound)
	_, body, _ := bytes.Cut(sound, []byte("\n"))
	f.Add(append([]byte(firstLine(entryMagic, 1, len(body)+2, checksum(string(body)+"{}"))), string(body)+"{}"...))
	f.Add([]byte("lightq-topic 1 2147483647 00000000\n{"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEntry(b)
		if err == nil {
			again, err := appendEntry(nil, &e)
			if err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
			back, err := parseEntry(again)
			if diff := cmp.Diff(e, back); err != nil || diff != "" {
				t.Fatalf("error %v (-first +second):\n%s", err, diff)
			}
		}
		// The same with a first line that is right for these bytes, to get behind the CRC.
		sealed := append([]byte(firstLine(entryMagic, 1, len(b), checksum(string(b)))), b...)
		if _, err := parseEntry(sealed); errors.As(err, new(*damagedError)) {
			t.Fatalf("a right first line is taken for damage: %v", err)
		}
	})
}
