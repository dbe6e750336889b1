package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lightio/lightq/journal/vfs"
)

// golden copies the journal's golden segments to a directory of the test.
func golden(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob(filepath.Join("..", "..", "journal", "testdata", "v1", name, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden segments: %v", err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func dumpRun(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, vfs.OS{}, &out, &errs)
	return code, out.String(), errs.String()
}

func TestPrintAndVerify(t *testing.T) {
	dir := golden(t, "closed")
	code, out, errs := dumpRun(t, "print", "-batches", dir)
	if code != exitOK || !strings.Contains(out, "sealed, next offset 41") || !strings.Contains(out, "producer 7 epoch 1 sequence 3") ||
		!strings.Contains(out, "gap  offsets 50 to 57") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	if code, out, errs = dumpRun(t, "verify", dir); code != exitOK || strings.Count(out, "\n") != 3 {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	name := filepath.Join(dir, "00000000000000000041.seg")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[5300] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs = dumpRun(t, "verify", dir); code != exitDamaged || !strings.Contains(out, "00000000000000000041.seg") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestRepairCutsATornTail(t *testing.T) {
	dir := golden(t, "torn")
	if code, out, errs := dumpRun(t, "verify", dir); code != exitDamaged {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	if code, out, errs := dumpRun(t, "repair", dir); code != exitOK || !strings.Contains(out, "offsets 0 to 107") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	if code, out, errs := dumpRun(t, "verify", dir); code != exitOK {
		t.Errorf("exit %d after the repair\n%s%s", code, out, errs)
	}
}

func TestRepairRefusesALockedDirectory(t *testing.T) {
	dir := golden(t, "torn")
	data := t.TempDir()
	lock, err := vfs.OS{}.Lock(filepath.Join(data, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if code, _, errs := dumpRun(t, "repair", "-data-dir", data, dir); code != exitFailure || !strings.Contains(errs, "locked") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"print"}, {"mend", "x"}, {"verify", "-nonsense"}} {
		if code, _, errs := dumpRun(t, args...); code != exitUsage || errs == "" {
			t.Errorf("%v: exit %d, %q", args, code, errs)
		}
	}
}
