package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
)

// shelf keeps what is published, by partition, and what has a key apart. What is more than a value or a key and a value is in
// messages.
type shelf struct {
	lines    [][]string
	keyed    []string // key=value
	messages []client.Message
	err      error
}

func (s *shelf) PublishAsync(_ context.Context, m client.Message, done func(client.Receipt, error)) error {
	switch {
	case s.err != nil:
		return s.err
	case (m.Key == nil) == (m.Partition == client.AnyPartition) || done != nil:
		return fmt.Errorf("unexpected message %+v", m)
	case m.Key == nil || m.Value == nil || len(m.Headers) > 0:
		m.Key, m.Value = bytes.Clone(m.Key), bytes.Clone(m.Value)
		s.messages = append(s.messages, m)
		return nil
	}
	s.keyed = append(s.keyed, string(m.Key)+"="+string(m.Value))
	return nil
}

func (s *shelf) PublishValue(_ context.Context, partition int, value []byte) error {
	if s.err != nil {
		return s.err
	}
	if value == nil {
		return errors.New("a null value")
	}
	s.lines[partition] = append(s.lines[partition], string(value))
	return nil
}

func (s *shelf) Flush(context.Context) error { return nil }

func (s *shelf) Err() error { return s.err }

func newLines(partitions, maxBatch int) *Lines {
	return NewLines("test", partitions, maxBatch, func(batchBytes int) string { return fmt.Sprintf("make it %d", batchBytes) })
}

func TestLines(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"nothing", "", nil},
		{"one", "one\n", []string{"one"}},
		{"no final newline", "one\ntwo", []string{"one", "two"}},
		{"blank lines", "\n\none\n\n", []string{"", "", "one", ""}},
		{"carriage returns", "one\r\n\r\ntwo\r", []string{"one\r", "\r", "two\r"}},
		{"any byte", "\x00\xff\x80\n\x00\n", []string{"\x00\xff\x80", "\x00"}},
		{"as long as can be", strings.Repeat("x", LargestRecord(1024)) + "\n", []string{strings.Repeat("x", LargestRecord(1024))}},
	} {
		readers := map[string]io.Reader{
			"whole": strings.NewReader(tc.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tc.in)),
			"end with data": iotest.DataErrReader(strings.NewReader(tc.in)),
		}
		for how, in := range readers {
			t.Run(tc.name+"/"+how, func(t *testing.T) {
				s := &shelf{lines: make([][]string, 1)}
				l := newLines(1, 1024)
				if err := l.Publish(t.Context(), in, s); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tc.want, s.lines[0]); d != "" {
					t.Errorf("lines (-want +got):\n%s", d)
				}
				bytes := 0
				for _, line := range tc.want {
					bytes += len(line)
				}
				if n, _, _, b := l.Counts(); n != int64(len(tc.want)) || b != int64(bytes) {
					t.Errorf("%d lines of %d B", n, b)
				}
			})
		}
	}
}

func TestLinesAcrossChunks(t *testing.T) {
	var in strings.Builder
	var want []string
	for i := range 1000 {
		line := strings.Repeat(string(rune('a'+i%26)), i*3)
		want = append(want, line)
		in.WriteString(line + "\n")
	}
	s := &shelf{lines: make([][]string, 1)}
	if err := newLines(1, 1<<20).Publish(t.Context(), strings.NewReader(in.String()), s); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, s.lines[0]); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
}

// TestLinesDelimiter: whatever separates records, and wherever reads cut the stream.
func TestLinesDelimiter(t *testing.T) {
	for _, tc := range []struct {
		delim, in string
		want      []string
	}{
		{"\x00", "a\nb\x00\x00c", []string{"a\nb", "", "c"}},
		{"--", "one--two-- three-four---five--", []string{"one", "two", " three-four", "-five"}},
		{"aab", "aaab", []string{"a"}},
		{"aab", "xaaaabyaabaab", []string{"xaa", "y", ""}},
		{"abc", "ab", []string{"ab"}},
		{"abcd", "1abcd2abc3abcabcd", []string{"1", "2abc3abc"}},
	} {
		readers := map[string]io.Reader{
			"whole": strings.NewReader(tc.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tc.in)),
			"halves": iotest.HalfReader(strings.NewReader(tc.in)),
		}
		for how, in := range readers {
			s := &shelf{lines: make([][]string, 1)}
			l := newLines(1, 1024)
			l.Delimit([]byte(tc.delim))
			if err := l.Publish(t.Context(), in, s); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, s.lines[0]); d != "" {
				t.Errorf("%q by %q, %s (-want +got):\n%s", tc.in, tc.delim, how, d)
			}
		}
	}
}

func TestLinesKeyed(t *testing.T) {
	s := &shelf{lines: make([][]string, 2)}
	l := newLines(2, 1024)
	l.Keyed([]byte("::"))
	if err := l.Publish(t.Context(), strings.NewReader("a::1\nnone\n::empty key\nempty value::\nb::2::3\n\nx:y\n"), s); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"a=1", "=empty key", "empty value=", "b=2::3"}, s.keyed); d != "" {
		t.Errorf("with keys (-want +got):\n%s", d)
	}
	if d := cmp.Diff([][]string{{"none", "x:y"}, {""}}, s.lines); d != "" {
		t.Errorf("without keys (-want +got):\n%s", d)
	}
	if n, _, _, b := l.Counts(); n != 7 || b != int64(len("1noneempty key2::3x:y")) || l.Keyless() != 3 {
		t.Errorf("%d lines of %d B, %d without a key", n, b, l.Keyless())
	}
}

// TestLinesDressed: headers, a key for all, and a text that stands for null.
func TestLinesDressed(t *testing.T) {
	headers := []codec.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{}}}
	message := func(partition int, key, value []byte, headers ...codec.RecordHeader) client.Message {
		return client.Message{Partition: partition, Key: key, Value: value, Headers: headers}
	}
	empty := []byte{}
	for name, tc := range map[string]struct {
		in    string
		dress func(*Lines)
		lines [][]string
		keyed []string
		want  []client.Message
		plain int64
	}{
		"headers": {
			"one\n\nk:v\n", func(l *Lines) { l.Headers(headers) }, make([][]string, 2), nil,
			[]client.Message{message(0, nil, []byte("one"), headers...), message(1, nil, empty, headers...), message(0, nil, []byte("k:v"), headers...)},
			3,
		},
		"headers and keys": {
			"k:v\n:v\nv\n", func(l *Lines) { l.Headers(headers); l.Keyed([]byte(":")) }, make([][]string, 2), nil,
			[]client.Message{
				message(client.AnyPartition, []byte("k"), []byte("v"), headers...),
				message(client.AnyPartition, empty, []byte("v"), headers...), message(0, nil, []byte("v"), headers...),
			},
			1,
		},
		"a key for all":        {"one\n\nk:v\n", func(l *Lines) { l.Key([]byte("all")) }, make([][]string, 2), []string{"all=one", "all=", "all=k:v"}, nil, 0},
		"an empty key for all": {"one\n", func(l *Lines) { l.Key(empty) }, make([][]string, 2), []string{"=one"}, nil, 0},
		"null": {
			"NULL\nNULLs\nk:NULL\nNULL:v\nNULL:NULL\n:\n", func(l *Lines) { l.Null([]byte("NULL")); l.Keyed([]byte(":")) },
			[][]string{{"v"}, {"NULLs"}},
			[]string{"="},
			[]client.Message{message(0, nil, nil), message(client.AnyPartition, []byte("k"), nil), message(1, nil, nil)},
			4,
		},
		"empty is null": {"\nx\n", func(l *Lines) { l.Null(empty) }, [][]string{nil, {"x"}}, nil, []client.Message{message(0, nil, nil)}, 2},
		"null is exact": {"null\n NULL\n", func(l *Lines) { l.Null([]byte("NULL")) }, [][]string{{"null"}, {" NULL"}}, nil, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{lines: make([][]string, 2)}
			l := newLines(2, 1024)
			tc.dress(l)
			if err := l.Publish(t.Context(), strings.NewReader(tc.in), s); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.lines, s.lines); d != "" {
				t.Errorf("values alone (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.keyed, s.keyed); d != "" {
				t.Errorf("with keys (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.want, s.messages); d != "" {
				t.Errorf("others (-want +got):\n%s", d)
			}
			if l.Keyless() != tc.plain {
				t.Errorf("%d without a key, want %d", l.Keyless(), tc.plain)
			}
		})
	}
}

// TestLinesHeadersLimit: headers count, and the largest line is one that the topic takes.
func TestLinesHeadersLimit(t *testing.T) {
	const maxBatch = 1024
	var headers []codec.RecordHeader
	for i := range 70 { // their count takes two bytes
		headers = append(headers, codec.RecordHeader{Key: "h", Value: bytes.Repeat([]byte{'x'}, i%3)})
	}
	headers = append(headers, codec.RecordHeader{Key: strings.Repeat("k", 70), Value: bytes.Repeat([]byte{'v'}, 70)})
	fits := 0
	for n := LargestRecord(maxBatch); n > 0; n-- {
		var w codec.BatchBuilder
		w.Reset(nil, maxBatch)
		if w.Add(0, nil, make([]byte, n), headers) {
			fits = n
			break
		}
	}
	if fits == 0 {
		t.Fatal("nothing fits beside the headers")
	}
	for _, n := range []int{fits, fits + 1} {
		s := &shelf{lines: make([][]string, 1)}
		l := newLines(1, maxBatch)
		l.Headers(headers)
		err := l.Publish(t.Context(), strings.NewReader(strings.Repeat("v", n)), s)
		if (err == nil) != (n == fits) || len(s.messages) != 1-n+fits {
			t.Errorf("a value of %d B where %d fit: %v", n, fits, err)
		}
		if n > fits && (!strings.Contains(err.Error(), fmt.Sprintf("in one record, %d B", fits)) || !strings.Contains(err.Error(), ": make it 1025")) {
			t.Errorf("error %v", err)
		}
	}
}

// TestLinesKeyedLimit: the key counts, and the largest line is one that the topic takes.
func TestLinesKeyedLimit(t *testing.T) {
	const maxBatch = 1024
	key := strings.Repeat("k", 300)
	fits := 0
	for n := LargestRecord(maxBatch); n > 0; n-- {
		var w codec.BatchBuilder
		w.Reset(nil, maxBatch)
		if w.Add(0, []byte(key), make([]byte, n), nil) {
			fits = n
			break
		}
	}
	for _, n := range []int{fits, fits + 1} {
		s := &shelf{lines: make([][]string, 1)}
		l := newLines(1, maxBatch)
		l.Keyed([]byte(":"))
		err := l.Publish(t.Context(), strings.NewReader(key+":"+strings.Repeat("v", n)), s)
		if (err == nil) != (n == fits) || len(s.keyed) != 1-n+fits {
			t.Errorf("a value of %d B where %d fit: %v", n, fits, err)
		}
	}
}

func TestLinesTurns(t *testing.T) {
	s := &shelf{lines: make([][]string, 3)}
	if err := newLines(3, 1024).Publish(t.Context(), strings.NewReader("0\n1\n2\n3\n4\n"), s); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([][]string{{"0", "3"}, {"1", "4"}, {"2"}}, s.lines); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
}

func TestLinesTooLong(t *testing.T) {
	for _, in := range []string{
		"one\ntwo\n" + strings.Repeat("x", 1000) + "\nfour\n",
		"one\ntwo\n" + strings.Repeat("x", 1000),
		"one\ntwo\n" + strings.Repeat("x", 3*lineChunkBytes), // no newline in sight
	} {
		s := &shelf{lines: make([][]string, 1)}
		l := newLines(1, 1024)
		err := l.Publish(t.Context(), strings.NewReader(in), s)
		if err == nil || !strings.HasPrefix(err.Error(), "line 3 has ") || !strings.Contains(err.Error(), ": make it ") || cli.ExitOf(err) != cli.ExitFailure {
			t.Errorf("error %v", err)
		}
		if n, _, _, _ := l.Counts(); n != 2 {
			t.Errorf("%d lines were published", n)
		}
	}
}

func TestLinesFailures(t *testing.T) {
	boom := errors.New("boom")
	s := &shelf{lines: make([][]string, 1)}
	in := io.MultiReader(strings.NewReader("one\ntwo\npart"), iotest.ErrReader(boom))
	if err := newLines(1, 1024).Publish(t.Context(), in, s); !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "read line 3: ") {
		t.Errorf("error %v", err)
	}
	s.err = boom
	if err := newLines(1, 1024).Publish(t.Context(), strings.NewReader("x\n"), s); !errors.Is(err, boom) {
		t.Errorf("error %v", err)
	}
}

// mortal is a shelf that can die while nothing is published.
type mortal struct {
	shelf
	cause atomic.Pointer[error]
}

func (m *mortal) Err() error {
	if err := m.cause.Load(); err != nil {
		return *err
	}
	return nil
}

// TestLinesWithoutPublisher: one that died while no line came ends it, although the input goes on.
func TestLinesWithoutPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		defer func() { _ = w.Close() }() // documented never to fail
		boom := errors.New("boom")
		s := &mortal{shelf: shelf{lines: make([][]string, 1)}}
		done := make(chan error)
		go func() { done <- newLines(1, 1024).Publish(t.Context(), r, s) }()
		if _, err := io.WriteString(w, "one\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s.cause.Store(&boom)
		if err := <-done; !errors.Is(err, boom) || len(s.lines[0]) != 1 {
			t.Errorf("error %v, lines %q", err, s.lines[0])
		}
		_ = r.Close() // ends the read; documented never to fail
	})
}

// TestRefused: what the broker did not take has failed, what it did not answer is open.
func TestRefused(t *testing.T) {
	wire := func(code codec.Code) error { return codec.Errorf(code, "for a reason") }
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{wire(codec.CodeOverflow), true},
		{fmt.Errorf("publish: %w", wire(codec.CodeStaleEpoch)), true},
		{wire(codec.CodeOutcomeUnknown), false},
		{&client.ConnError{Op: "read", Err: io.EOF}, false},
		{&client.ConnError{Op: "read", Err: wire(codec.CodeDraining)}, false},
		{client.ErrClosed, false},
		{context.Canceled, false},
		{errors.New("anything else"), true},
	} {
		var s Sender
		l := newLines(1, 1024)
		s.OnBatch(client.BatchResult{Records: 3, Err: tc.err})
		l.OnBatch(client.BatchResult{Records: 3, Err: tc.err})
		want := int64(0)
		if tc.want {
			want = 3
		}
		_, confirmed, failed := s.Counts()
		_, lineConfirmed, lineFailed, _ := l.Counts()
		if confirmed != 0 || lineConfirmed != 0 || failed != want || lineFailed != want {
			t.Errorf("%v: %d and %d failed, want %d", tc.err, failed, lineFailed, want)
		}
	}
}

// TestLinesInterrupted: a read that never returns does not hold up an interrupt.
func TestLinesInterrupted(t *testing.T) {
	r, w := io.Pipe()
	defer func() { _ = w.Close() }() // documented never to fail
	ctx, cancel := context.WithCancel(t.Context())
	s := &shelf{lines: make([][]string, 1)}
	go func() {
		_, _ = io.WriteString(w, "one\n") // returns when it was read
		cancel()
	}()
	if err := newLines(1, 1024).Publish(ctx, r, s); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
