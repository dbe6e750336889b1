package cmd

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestF64DataDirectory: F64. An error that blames the wrong thing: "in use" for a directory that does not exist. Here a directory
// that is missing is made, and otherwise one line names the path, what the system said, and a remedy.
func TestF64DataDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	locked := filepath.Join(dir, "locked")
	if err := os.MkdirAll(filepath.Join(locked, "lock"), 0o750); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, strings.Repeat("long", 75))
	for _, tc := range []struct {
		name, dir string
		code      int
		says      []string
	}{
		{"a file", file, 1, []string{file, "not a directory", "--data-dir"}},
		{"below a file", filepath.Join(file, "data"), 1, []string{file, "not a directory", "--data-dir"}},
		{"too long", long, 1, []string{long, "file name too long", "--data-dir"}},
		{"a link to nowhere", dangling, 1, []string{dangling, "--data-dir"}},
		{"its lock file is a directory", locked, 1, []string{filepath.Join(locked, "lock"), "not a regular file", "--data-dir"}},
		{"empty", "", 2, []string{"--data-dir", `""`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, text := runProgram(t, nil, "lightq-broker", "-b", "0", "--data-dir", tc.dir)
			for _, part := range tc.says {
				if code != tc.code || !oneLine(text) || !strings.Contains(text, part) {
					t.Fatalf("exit code %d, want %d and one line with %q:\n%s", code, tc.code, part, text)
				}
			}
			if strings.Contains(text, "in use") || strings.Contains(text, "taken") {
				t.Errorf("it blames another broker:\n%s", text)
			}
		})
	}
}

// TestF64NotPermitted: F64. A directory that the broker's user may not write to, or whose parent is not theirs. Permissions do
// not bind root, so as root the broker runs as another user.
func TestF64NotPermitted(t *testing.T) {
	dir := t.TempDir()
	program, err := exec.LookPath("lightq-broker")
	if err != nil {
		t.Fatal(err)
	}
	become := func(cmd *exec.Cmd) {}
	if os.Getuid() == 0 {
		// Another user may not enter the directory that the program and the test's files are in.
		for _, d := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		mine := filepath.Join(dir, "lightq-broker")
		copyProgram(t, program, mine)
		program = mine
		become = func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			cmd.Dir = "/"
		}
	}
	parent := filepath.Join(dir, "parent")
	closed := filepath.Join(parent, "closed")
	if err := os.MkdirAll(closed, 0o750); err != nil {
		t.Fatal(err)
	}
	readOnly := filepath.Join(dir, "readonly")
	if err := os.Mkdir(readOnly, 0o750); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{readOnly: 0o555, parent: 0} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Chmod(path, 0o750); err != nil { // so that it can be removed
				t.Error(err)
			}
		})
	}
	for name, path := range map[string]string{
		"not to be written to": readOnly, "its parent is not to be written to": filepath.Join(readOnly, "data"), "its parent is closed": closed,
	} {
		t.Run(name, func(t *testing.T) {
			code, text := runProgram(t, become, program, "-b", "0", "--data-dir", path)
			for _, part := range []string{path, "permission denied", "--data-dir"} {
				if code != 4 || !oneLine(text) || !strings.Contains(text, part) {
					t.Fatalf("exit code %d, want 4 and one line with %q:\n%s", code, part, text)
				}
			}
		})
	}
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }() // it was only read from
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestF64EffectivePath: F64. A relative path means one directory, whatever directory a broker is started in next; the ready line
// and the log tell its absolute path. What is missing of it is made.
func TestF64EffectivePath(t *testing.T) {
	h := newHome(t)
	work, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h.dir = "some/more/../data"
	absolute := filepath.Join(work, "some", "data")
	here := func(dir string) func(*exec.Cmd) {
		return func(cmd *exec.Cmd) { cmd.Dir, cmd.Env = dir, append(cmd.Env, "PWD="+dir) }
	}
	first := startProgram(t, here(work), "lightq-broker", h.args()...).ready()
	if ready := first.stdout.text(); !strings.Contains(ready, " data="+absolute+" ") {
		t.Errorf("the ready line does not tell %s:\n%s", absolute, ready)
	}
	first.says("path=" + absolute + " ")
	createTopic(t, dial(t, h.server()), "kept", fileTopic)
	first.signal(syscall.SIGTERM)
	first.wait()

	// Elsewhere the same words are another directory, and the absolute path is still this one.
	elsewhere := startProgram(t, here(t.TempDir()), "lightq-broker", h.args()...).ready()
	if topics, err := dial(t, h.server()).List(t.Context()); err != nil || len(topics) != 0 {
		t.Errorf("elsewhere: %v, %v", topics, err)
	}
	elsewhere.signal(syscall.SIGTERM)
	elsewhere.wait()
	h.dir = absolute
	startProgram(t, here("/"), "lightq-broker", h.args()...).ready()
	if topics, err := dial(t, h.server()).List(t.Context()); err != nil || len(topics) != 1 {
		t.Errorf("by its absolute path: %v, %v", topics, err)
	}
}
