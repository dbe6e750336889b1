package catalogue

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lightio/lightq/codec"
)

// Limits of an entry. They bound what is read into memory from a file that may hold anything.
const (
	maxFileBytes      = 1 << 20 // an entry with the most partitions and the largest ceilings has less than a tenth
	maxNameBytes      = 249     // as topic.MaxNameBytes
	maxUserBytes      = 1 << 10
	maxPartitions     = 4096 // as topic.MaxPartitions
	maxKeyBytes       = 64
	maxIterations     = 1 << 24
	formatVersion     = 1
	entryMagic        = "lightq-topic"
	producerIDsMagic  = "lightq-producer-ids"
	maxFirstLineBytes = 80
)

// An Entry is what the catalogue knows of a topic.
type Entry struct {
	Name          string // for the whole life of the topic
	ID            codec.TopicID
	Settings      codec.TopicSettings
	CreatedMillis int64 // since the Unix epoch

	User     string    // of the topic's credentials; "": none
	Verifier *Verifier // of the user's password; nil: none

	// Ceilings has one offset for each partition, or is empty. Offsets below it may have been given out before the records were
	// durable, so the partition goes on from there after a restart.
	Ceilings []codec.Offset

	// Ends has the offset at which each partition goes on instead, at or below its ceiling, or is empty: the broker was closed in
	// order. An entry without them has to be Put before any offset at or above one is given out.
	Ends []codec.Offset
}

func (e Entry) clone() Entry {
	e.Ceilings, e.Ends = slices.Clone(e.Ceilings), slices.Clone(e.Ends)
	if e.Verifier != nil {
		v := e.Verifier.clone()
		e.Verifier = &v
	}
	return e
}

// check says whether an entry can be stored, and makes sense once read.
func (e *Entry) check() error {
	switch {
	case e.Name == "" || len(e.Name) > maxNameBytes || !utf8.ValidString(e.Name):
		return fmt.Errorf("the name %q is not a text of 1 to %d bytes", clip(e.Name), maxNameBytes)
	case e.ID == codec.TopicID{}:
		return errors.New("the topic id is 0")
	case e.Settings.Partitions < 1 || e.Settings.Partitions > maxPartitions:
		return fmt.Errorf("%d partitions are outside of 1 to %d", e.Settings.Partitions, maxPartitions)
	case len(e.User) > maxUserBytes || !utf8.ValidString(e.User):
		return fmt.Errorf("the user %q is not a text of at most %d bytes", clip(e.User), maxUserBytes)
	case len(e.Ceilings) != 0 && len(e.Ceilings) != int(e.Settings.Partitions):
		return fmt.Errorf("%d ceilings for %d partitions", len(e.Ceilings), e.Settings.Partitions)
	}
	if len(e.Ends) != 0 && len(e.Ends) != len(e.Ceilings) {
		return fmt.Errorf("%d ends with %d ceilings", len(e.Ends), len(e.Ceilings))
	}
	for i, end := range e.Ends {
		if end < 0 || end > e.Ceilings[i] {
			return fmt.Errorf("the end %d of partition %d is outside of 0 to its ceiling %d", end, i, e.Ceilings[i])
		}
	}
	for i, c := range e.Ceilings {
		if c < 0 {
			return fmt.Errorf("the ceiling of partition %d is %d", i, c)
		}
	}
	if _, ok := codec.ParseStorage(e.Settings.Storage.String()); !ok {
		return fmt.Errorf("storage %d is unknown", e.Settings.Storage)
	}
	if o := e.Settings.Overflow; o != 0 {
		if _, ok := codec.ParseOverflow(o.String()); !ok {
			return fmt.Errorf("overflow %d is unknown", o)
		}
	}
	if y := e.Settings.Sync; y != 0 {
		if _, ok := codec.ParseSync(y.String()); !ok {
			return fmt.Errorf("sync %d is unknown", y)
		}
	}
	return e.Verifier.check()
}

func clip(s string) string { return s[:min(len(s), maxNameBytes)] }

// entryFile is an Entry as JSON. A field that is not set is left out, so that adding one leaves the files of topics without it as
// they were.
type entryFile struct {
	Name          string         `json:"name"`
	ID            string         `json:"id"`
	Settings      settingsFile   `json:"settings"`
	CreatedMillis int64          `json:"created_millis"`
	User          string         `json:"user,omitempty"`
	Verifier      *Verifier      `json:"verifier,omitempty"`
	Ceilings      []codec.Offset `json:"ceilings,omitempty"`
	Ends          []codec.Offset `json:"ends,omitempty"`
}

// settingsFile is a codec.TopicSettings as JSON: a new setting is a field here and a line in each of the three functions below.
type settingsFile struct {
	Storage       string `json:"storage"`
	Partitions    uint32 `json:"partitions"`
	Overflow      string `json:"overflow,omitempty"`
	RingBytes     uint64 `json:"ring_bytes,omitempty"`
	MaxBatchBytes uint32 `json:"max_batch_bytes,omitempty"`

	Sync            string `json:"sync,omitempty"`
	SyncMillis      uint32 `json:"sync_millis,omitempty"`
	RetentionBytes  uint64 `json:"retention_bytes,omitempty"`
	RetentionMillis uint64 `json:"retention_millis,omitempty"`
	SegmentBytes    uint64 `json:"segment_bytes,omitempty"`
}

func settingsToFile(s codec.TopicSettings) settingsFile {
	f := settingsFile{
		Storage:       s.Storage.String(),
		Partitions:    s.Partitions,
		RingBytes:     s.RingBytes,
		MaxBatchBytes: s.MaxBatchBytes,

		SyncMillis:      s.SyncMillis,
		RetentionBytes:  s.RetentionBytes,
		RetentionMillis: s.RetentionMillis,
		SegmentBytes:    s.SegmentBytes,
	}
	if s.Overflow != 0 {
		f.Overflow = s.Overflow.String()
	}
	if s.Sync != 0 {
		f.Sync = s.Sync.String()
	}
	return f
}

func settingsFromFile(f settingsFile) (codec.TopicSettings, error) {
	s := codec.TopicSettings{
		Partitions:    f.Partitions,
		RingBytes:     f.RingBytes,
		MaxBatchBytes: f.MaxBatchBytes,

		SyncMillis:      f.SyncMillis,
		RetentionBytes:  f.RetentionBytes,
		RetentionMillis: f.RetentionMillis,
		SegmentBytes:    f.SegmentBytes,
	}
	var ok bool
	if s.Storage, ok = codec.ParseStorage(f.Storage); !ok {
		return s, fmt.Errorf("storage %q is unknown", clip(f.Storage))
	}
	if f.Overflow != "" {
		if s.Overflow, ok = codec.ParseOverflow(f.Overflow); !ok {
			return s, fmt.Errorf("overflow %q is unknown", clip(f.Overflow))
		}
	}
	if f.Sync != "" {
		if s.Sync, ok = codec.ParseSync(f.Sync); !ok {
			return s, fmt.Errorf("sync %q is unknown", clip(f.Sync))
		}
	}
	return s, nil
}

// A damagedError says that the bytes of a file are not what was written: its predecessor may stand in.
type damagedError struct{ reason string }

func (e *damagedError) Error() string { return e.reason }

func damaged(format string, args ...any) error {
	return &damagedError{fmt.Sprintf(format, args...)}
}

// A strangeError says that a file is what somebody wrote, and that this version does not understand it. Its predecessor must not
// stand in: it would undo what a newer version did.
type strangeError struct{ reason string }

func (e *strangeError) Error() string { return e.reason }

func strange(format string, args ...any) error {
	return &strangeError{fmt.Sprintf(format, args...)}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFile appends a file: a first line that says what follows and how much of it, with its CRC-32C, then the body as JSON.
func appendFile(dst []byte, magic string, v any) ([]byte, error) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	body = append(body, '\n')
	dst = append(dst, firstLine(magic, formatVersion, len(body), crc32.Checksum(body, castagnoli))...)
	return append(dst, body...), nil
}

func firstLine(magic string, version uint64, size int, crc uint32) string {
	return fmt.Sprintf("%s %d %d %08x\n", magic, version, size, crc)
}

// parseFile returns the body of a file, a view of b. The error is a *damagedError or a *strangeError.
func parseFile(b []byte, magic string) (body []byte, err error) {
	if len(b) == 0 {
		return nil, damaged("it is empty")
	}
	end := bytes.IndexByte(b[:min(len(b), maxFirstLineBytes)], '\n')
	if end < 0 {
		return nil, damaged("its first line is not that of a %s file", magic)
	}
	line, body := string(b[:end+1]), b[end+1:]
	fields := strings.Split(strings.TrimSuffix(line, "\n"), " ")
	if len(fields) < 4 || fields[0] != magic {
		return nil, damaged("its first line is not that of a %s file", magic)
	}
	version, err1 := strconv.ParseUint(fields[1], 10, 32)
	size, err2 := strconv.ParseUint(fields[2], 10, 31)
	crc, err3 := strconv.ParseUint(fields[3], 16, 32)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, damaged("its first line is not that of a %s file", magic)
	}
	switch {
	case int(size) != len(body):
		return nil, damaged("it has %d bytes behind the first line, which says %d", len(body), size)
	case crc32.Checksum(body, castagnoli) != uint32(crc):
		return nil, damaged("the CRC-32C is %08x, the first line says %08x", crc32.Checksum(body, castagnoli), crc)
	case version != formatVersion:
		// The CRC does not cover the version. Where a flipped bit made another one, the file is left alone all the same.
		return nil, strange("it is of format version %d, and this program understands %d", version, formatVersion)
	case line != firstLine(magic, version, int(size), uint32(crc)):
		return nil, damaged("its first line is not as it was written")
	}
	return body, nil
}

// unmarshal decodes a body that must have the fields of v and no others.
func unmarshal(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return strange("it is not understood: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return strange("it is not understood: something follows the JSON object")
	}
	return nil
}

// appendEntry appends the bytes of an entry's file.
func appendEntry(dst []byte, e *Entry) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	return appendFile(dst, entryMagic, entryFile{
		Name: e.Name, ID: hex.EncodeToString(e.ID[:]), Settings: settingsToFile(e.Settings), CreatedMillis: e.CreatedMillis,
		User: e.User, Verifier: e.Verifier, Ceilings: e.Ceilings, Ends: e.Ends,
	})
}

// parseEntry reads an entry's file. Nothing in the result is a view of b.
func parseEntry(b []byte) (e Entry, err error) {
	body, err := parseFile(b, entryMagic)
	if err != nil {
		return e, err
	}
	var f entryFile
	if err := unmarshal(body, &f); err != nil {
		return e, err
	}
	id, ok := parseID(f.ID)
	if !ok {
		return e, strange("the topic id %q is not 32 hex digits", clip(f.ID))
	}
	s, err := settingsFromFile(f.Settings)
	if err != nil {
		return e, strange("%v", err)
	}
	e = Entry{Name: f.Name, ID: id, Settings: s, CreatedMillis: f.CreatedMillis, User: f.User, Verifier: f.Verifier, Ceilings: f.Ceilings, Ends: f.Ends}
	if len(e.Ends) == 0 {
		e.Ends = nil
	}
	if len(e.Ceilings) == 0 {
		e.Ceilings = nil
	}
	if err := e.check(); err != nil {
		return Entry{}, strange("%v", err)
	}
	return e, nil
}

// guessName looks for a name in a file that could not be read.
func guessName(b []byte) string {
	_, body, ok := bytes.Cut(b, []byte("\n"))
	if !ok {
		return ""
	}
	var f struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(body, &f); err != nil || len(f.Name) > maxNameBytes {
		return ""
	}
	return f.Name
}

// parseID reads a topic id as the directories have it: 32 digits, in lower case.
func parseID(s string) (id codec.TopicID, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) || hex.EncodeToString(b) != s {
		return id, false
	}
	return codec.TopicID(b), true
}

// parsePartition reads the name of a partition's directory: a number without leading zeros.
func parsePartition(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < maxPartitions && strconv.FormatUint(n, 10) == s
}
