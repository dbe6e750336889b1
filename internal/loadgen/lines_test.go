package loadgen

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/lightio/lightq/internal/cli"
)

// shelf keeps what is published, by partition.
type shelf struct {
	lines [][]string
	err   error
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
				l := NewLines("test", 1, 1024)
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
	if err := NewLines("test", 1, 1<<20).Publish(t.Context(), strings.NewReader(in.String()), s); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, s.lines[0]); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
}

func TestLinesTurns(t *testing.T) {
	s := &shelf{lines: make([][]string, 3)}
	if err := NewLines("test", 3, 1024).Publish(t.Context(), strings.NewReader("0\n1\n2\n3\n4\n"), s); err != nil {
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
		l := NewLines("test", 1, 1024)
		err := l.Publish(t.Context(), strings.NewReader(in), s)
		if err == nil || !strings.HasPrefix(err.Error(), "line 3 has ") || cli.ExitOf(err) != cli.ExitFailure {
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
	if err := NewLines("test", 1, 1024).Publish(t.Context(), in, s); !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "read line 3: ") {
		t.Errorf("error %v", err)
	}
	s.err = boom
	if err := NewLines("test", 1, 1024).Publish(t.Context(), strings.NewReader("x\n"), s); !errors.Is(err, boom) {
		t.Errorf("error %v", err)
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
	if err := NewLines("test", 1, 1024).Publish(ctx, r, s); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
