package cmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// refusedAsHeld checks that a broker has ended because of another one on its directory: one line that names both, and a remedy.
func refusedAsHeld(t *testing.T, code int, text, dir string, holder int) {
	t.Helper()
	for _, part := range []string{dir, "in use by another broker", fmt.Sprintf("process %d", holder), "--data-dir"} {
		if code != 1 || !oneLine(text) || !strings.Contains(text, part) {
			t.Errorf("exit code %d, want 1 and one line with %q:\n%s", code, part, text)
			return
		}
	}
}

// TestF63TwoBrokers: F63. Two brokers on one data directory mix their files. The second ends at once and names the directory and
// who has it, whatever the path by which it was given; no leftover keeps a broker from starting.
func TestF63TwoBrokers(t *testing.T) {
	h := newHome(t)
	first := h.start(t).ready()
	c := dial(t, h.server())
	producer := publishKept(t, c, 50)

	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(h.dir, link); err != nil {
		t.Fatal(err)
	}
	linkedParent := filepath.Join(t.TempDir(), "parent")
	if err := os.Symlink(filepath.Dir(h.dir), linkedParent); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{h.dir, link, filepath.Join(linkedParent, filepath.Base(h.dir)), h.dir + "/../" + filepath.Base(h.dir)} {
		code, text := runProgram(t, nil, "lightq-broker", "-b", "0", "--data-dir", dir)
		refusedAsHeld(t, code, text, filepath.Clean(dir), first.cmd.Process.Pid)
	}
	publishAll(t, producer, 50, 100) // the first has taken no harm

	// Killed, it leaves its lock file behind, with its number in it; the next one starts at once.
	first.kill()
	if text, err := os.ReadFile(filepath.Join(h.dir, "lock")); err != nil || strings.TrimSpace(string(text)) != fmt.Sprint(first.cmd.Process.Pid) {
		t.Errorf("the lock file holds %q, %v", text, err)
	}
	second := h.start(t).ready()
	readAll(t, dial(t, h.server()), "kept", 100)
	second.kill()

	// A lock file that names a process which lives, or holds anything, is a file and no lock.
	for _, text := range []string{fmt.Sprint(os.Getpid()), "", "no number\n", strings.Repeat("9", 100)} {
		if err := os.WriteFile(filepath.Join(h.dir, "lock"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := h.start(t).ready()
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, p.text())
		}
	}
}

// TestF63WhileStopping: F63. Brokers that are started while the first one shuts down, by a user or a supervisor, are refused
// until it has let go, and then find all that it had confirmed.
func TestF63WhileStopping(t *testing.T) {
	h := newHome(t)
	first := h.start(t).ready()
	c := dial(t, h.server())
	publishKept(t, c, 1000)
	first.signal(syscall.SIGTERM)
	for {
		// It has a port of its own, so that only the directory is in its way.
		p := startProgram(t, nil, "lightq-broker", "-b", "0", "--data-dir", h.dir)
		select {
		case <-p.done:
			refusedAsHeld(t, p.wait(), p.text(), h.dir, first.cmd.Process.Pid)
			if t.Failed() {
				return
			}
			continue
		case <-p.stdout.found:
		}
		if code := first.wait(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, first.text())
		}
		_, address, _ := strings.Cut(p.stdout.text(), "native=")
		address, _, _ = strings.Cut(address, " ")
		readAll(t, dial(t, address), "kept", 1000)
		return
	}
}

// TestF63AtOnce: F63. Of several brokers that begin on a new directory at the same moment one serves, and the others end.
func TestF63AtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	var all []*process
	for range 4 {
		all = append(all, startProgram(t, nil, "lightq-broker", "-b", "0", "--data-dir", dir))
	}
	serving := 0
	for _, p := range all {
		select {
		case <-p.done:
			// Whose directory it is may not be written down yet.
			if code, text := p.wait(), p.text(); code != 1 || !oneLine(text) || !strings.Contains(text, "data directory "+dir+" is in use by another broker") {
				t.Errorf("exit code %d:\n%s", code, text)
			}
		case <-p.stdout.found:
			serving++
		}
	}
	if serving != 1 {
		t.Errorf("%d brokers serve", serving)
	}
}
