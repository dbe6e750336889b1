package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/lightio/lightq/internal/loadgen"
)

// The four programs that are measured.
const (
	programBroker   = "lightq-broker"
	programTopic    = "lightq-topic"
	programProducer = "lightq-producer"
	programConsumer = "lightq-consumer"
)

var programNames = []string{programBroker, programTopic, programProducer, programConsumer}

// modulePath is the first line of LightQ's go.mod, by which a checkout is recognised.
const modulePath = "module github.com/lightio/lightq"

// findPrograms returns a directory that holds all four programs: dir if it is set, else the one this executable is in, else,
// inside a checkout, one they are built into under scratch. It says on progress when it builds.
func findPrograms(ctx context.Context, dir, scratch string, progress io.Writer) (string, error) {
	if dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("find programs: %w", err)
		}
		return abs, hasPrograms(abs)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find programs: %w", err)
	}
	if resolved, err := filepath.EvalSymlinks(self); err == nil {
		self = resolved
	}
	missing := hasPrograms(filepath.Dir(self))
	if missing == nil {
		return filepath.Dir(self), nil
	}
	root, err := checkoutRoot()
	if err != nil {
		return "", fmt.Errorf("%w; give their directory with --bin, or run this inside the checkout to have them built", missing)
	}
	fmt.Fprintln(progress, "building the programs …")
	built := filepath.Join(scratch, "bin")
	if err := os.Mkdir(built, 0o755); err != nil {
		return "", fmt.Errorf("build programs: %w", err)
	}
	args := []string{"build", "-o", built + string(filepath.Separator)}
	for _, name := range programNames {
		args = append(args, "./cmd/"+name)
	}
	build := exec.CommandContext(ctx, "go", args...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", fmt.Errorf("build programs: %w: %s", err, bytes.TrimSpace(out))
	}
	return built, hasPrograms(built)
}

// hasPrograms reports the first program that dir lacks, or nil.
func hasPrograms(dir string) error {
	for _, name := range programNames {
		st, err := os.Stat(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("find %s: not in %s", name, dir)
		case err != nil:
			return fmt.Errorf("find %s: %w", name, err)
		case !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0:
			return fmt.Errorf("find %s: %s is not an executable file", name, filepath.Join(dir, name))
		}
	}
	return nil
}

// checkoutRoot returns the directory of LightQ's go.mod, seen from the working directory upwards.
func checkoutRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find checkout: %w", err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil {
			first, _, _ := strings.Cut(string(mod), "\n")
			if strings.TrimSpace(first) == modulePath {
				return dir, nil
			}
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find checkout: the working directory is not inside one")
		}
		dir = parent
	}
}

// parseBrokerReady finds the native address on the broker's ready line: a line that begins with the word "ready" and holds
// native=ADDR as one of its fields.
func parseBrokerReady(line string) (string, bool) {
	fields := strings.Fields(line)
	if len(fields) == 0 || strings.TrimSuffix(fields[0], ":") != "ready" {
		return "", false
	}
	for _, f := range fields[1:] {
		if addr, ok := strings.CutPrefix(f, "native="); ok {
			addr, _, _ = strings.Cut(strings.Trim(addr, `",;`), ",")
			return addr, addr != ""
		}
	}
	return "", false
}

// parseAttached recognises the line by which a consumer says that it will receive what is published from now on.
func parseAttached(line string) (string, bool) {
	return "", strings.HasPrefix(line, "attached")
}

// decodeReport reads the one JSON object in text into v. Unknown fields are allowed, anything after the object is not.
func decodeReport(text string, v any) error {
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("it printed no report")
		}
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("it printed more than one JSON object")
	}
	return nil
}

// parseProducer reads and cross-checks the report of a producer: the total must be the sum of its partitions.
func parseProducer(text string) (*loadgen.ProducerReport, error) {
	fail := func(format string, args ...any) (*loadgen.ProducerReport, error) {
		return nil, fmt.Errorf("read report of %s: %w", programProducer, fmt.Errorf(format, args...))
	}
	s := &loadgen.ProducerReport{}
	if err := decodeReport(text, s); err != nil {
		return fail("%w", err)
	}
	var sum loadgen.ProducerCounts
	for _, p := range s.Partitions {
		sum.Sent += p.Sent
		sum.Confirmed += p.Confirmed
		sum.Failed += p.Failed
		sum.Unconfirmed += p.Unconfirmed
		sum.Bytes += p.Bytes
	}
	switch {
	case s.Program != programProducer:
		return fail("it says it is from %q", s.Program)
	case len(s.Partitions) == 0:
		return fail("no partitions")
	case sum != s.Total.ProducerCounts:
		return fail("its partitions do not add up to its total")
	}
	return s, nil
}

// parseConsumer reads and cross-checks the report of a consumer: the total must be the sum of its partitions, and what it
// verified must be there.
func parseConsumer(text string) (*loadgen.ConsumerReport, error) {
	fail := func(format string, args ...any) (*loadgen.ConsumerReport, error) {
		return nil, fmt.Errorf("read report of %s: %w", programConsumer, fmt.Errorf(format, args...))
	}
	s := &loadgen.ConsumerReport{}
	if err := decodeReport(text, s); err != nil {
		return fail("%w", err)
	}
	switch {
	case s.Program != programConsumer:
		return fail("it says it is from %q", s.Program)
	case len(s.Partitions) == 0:
		return fail("no partitions")
	case s.Verification != "on" && s.Verification != "off":
		return fail("verification is %q", s.Verification)
	}
	type counts struct{ received, bytes, gap, lost, duplicate, outOfOrder int64 }
	var sum, total counts
	add := func(to *counts, c loadgen.Counts) bool {
		to.received += c.Received
		to.bytes += c.Bytes
		to.gap += c.Gap
		if s.Verification == "off" {
			return true
		}
		if c.Lost == nil || c.Duplicate == nil || c.OutOfOrder == nil {
			return false
		}
		to.lost += *c.Lost
		to.duplicate += *c.Duplicate
		to.outOfOrder += *c.OutOfOrder
		return true
	}
	complete := add(&total, s.Total.Counts)
	for _, p := range s.Partitions {
		complete = add(&sum, p.Counts) && complete
	}
	switch {
	case !complete:
		return fail("verification is on, and counts are missing")
	case sum != total:
		return fail("its partitions do not add up to its total")
	}
	return s, nil
}
