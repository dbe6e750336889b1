package rules

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lightio/lightq/loop"
)

const (
	// runMark stands in the line above a code block of README.md that TestReadme runs.
	runMark = "<!-- run -->"
	// readmeMessages is what README.md sends, testMessages what the test sends instead.
	readmeMessages, testMessages = "10000000", "20000"
	// readmeAddr is the broker's address in README.md; the test's broker takes a free port.
	readmeAddr = "tcp://127.0.0.1:5500"
)

// markedBlocks returns the code blocks of a Markdown text that stand below a runMark, joined by language.
func markedBlocks(text string) map[string]string {
	blocks := map[string]string{}
	language, marked, previous := "", false, ""
	for line := range strings.Lines(text) {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && language == "":
			language, marked = fence, previous == runMark
			if language == "" {
				language = "text"
			}
		case isFence:
			language = ""
		case language != "" && marked:
			blocks[language] += line
		}
		previous = strings.TrimSpace(line)
	}
	return blocks
}

func TestMarkedBlocks(t *testing.T) {
	got := markedBlocks("<!-- run -->\n```sh\na\n```\n```sh\nb\n```\n<!-- run -->\n\n```sh\nc\n```\n" +
		"<!-- run -->\n```go\nd\n```\n<!-- run -->\n```sh\ne\n\n```\n```\nf\n```\n")
	if got["sh"] != "a\ne\n\n" || got["go"] != "d\n" || len(got) != 2 {
		t.Errorf("got %q", got)
	}
}

// TestReadmeCommands types what README.md says a user may type: its marked shell blocks as one script, with fewer messages.
// The programs are the real ones, behind scripts of the same names in bin/ that move them from port 5500 to a free port.
func TestReadmeCommands(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash to type the commands into")
	}
	readme := readmeText(t)
	commands := markedBlocks(readme)["sh"]
	for _, want := range []string{"lightq-broker &\n", "lightq-producer -m " + readmeMessages, "--print -e"} {
		if !strings.Contains(commands, want) {
			t.Fatalf("README.md has no marked command %q", want)
		}
	}

	dir, built := t.TempDir(), t.TempDir()
	build(t, built, "./cmd/...")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("README.md", readme, 0o600)
	// A broker leaves its ready line in a file; a client waits for that and goes where it says.
	write("bin/lightq-broker", "#!"+bash+`
"$BUILT/lightq-broker" -b 0 --disk-reserve 0 "$@" >"$BUILT/ready" &
trap 'kill $!' TERM
wait $! || wait $!
`, 0o755)
	for _, client := range []string{"lightq-topic", "lightq-producer", "lightq-consumer"} {
		write("bin/"+client, "#!"+bash+`
until address=$(sed -n 's,^ready native=\(tcp://[^ ]*\) .*,\1,p' "$BUILT/ready" 2>/dev/null) && [ -n "$address" ]; do
	sleep 0.05
done
exec "$BUILT/`+client+`" "$@" -b "$address"
`, 0o755)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-euo", "pipefail", "-c",
		strings.ReplaceAll(commands, readmeMessages, testMessages)+"kill %1\nwait %1 # 0: it has drained\n")
	cmd.Dir = dir
	// The broker's data directory is below the state directory, or on macOS below the home directory.
	cmd.Env = append(os.Environ(), "BUILT="+built, "HOME="+dir, "XDG_STATE_HOME="+t.TempDir(), "LIGHTQ_DATA_DIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that all of it can be ended together
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	output, err := cmd.CombinedOutput()
	var left error = syscall.ESRCH
	if cmd.Process != nil {
		left = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatalf("README.md's commands: %v\n%s", err, output)
	}
	if !errors.Is(left, syscall.ESRCH) {
		t.Errorf("processes were left behind (kill: %v)", left)
	}
	for _, want := range []string{
		"created test: queue, 1 partition",
		"confirmed +20,000",
		"messages received +20,000",
		"lost, duplicate, out of order +0, 0, 0",
		"published text: .* all confirmed",
		"\nhello\n",
		"text: queue, 1 partition",
		"[0-3]/[0-9]+ ann is Ann Archer \\(source=readme\\)\n",
		`"key":"bob","value":"Bob Baker","headers":\[{"key":"source","value":"readme"}\]}`,
		"draining",
	} {
		if !regexp.MustCompile(want).Match(output) {
			t.Errorf("the output has nothing like %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", output)
	}
}

// TestReadmeProgram builds and runs the Go program of README.md, which must print what README.md says.
func TestReadmeProgram(t *testing.T) {
	readme := readmeText(t)
	program := markedBlocks(readme)["go"]
	if !strings.Contains(program, readmeAddr) {
		t.Fatalf("README.md has no marked Go program that connects to %s", readmeAddr)
	}
	b, err := loop.NewBroker(loop.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()

	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "hello")
	program = strings.ReplaceAll(program, readmeAddr, "tcp://"+b.Addrs()[0].String())
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	build(t, binary, source)
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	got, err := exec.CommandContext(limited, binary).CombinedOutput()
	if want := goOutput(t, readme); err != nil || string(got) != want {
		t.Errorf("it ended with %v and printed\n%s\nREADME.md says\n%s", err, got, want)
	}
}

func readmeText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// goOutput is what README.md says that its Go program prints: the first block of text behind it.
func goOutput(t *testing.T, readme string) string {
	t.Helper()
	_, after, _ := strings.Cut(readme, "```go\n")
	_, after, _ = strings.Cut(after, "```text\n")
	text, _, ok := strings.Cut(after, "```")
	if !ok {
		t.Fatal("README.md does not say what its Go program prints")
	}
	return text
}

// build runs go build in the root of the repository.
func build(t *testing.T, to, what string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", to, what)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", what, err, out)
	}
}
