// Package pyclient is a second client of the protocol, written from docs/PROTOCOL.md alone, in Python, to keep the document honest.
package pyclient

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lightio/lightq/loop"
	"github.com/lightio/lightq/loop/brokertest"
)

// TestPythonClient runs the Python client's tests, those against a broker among them.
func TestPythonClient(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatalf("python3 is needed for the tests of the Python client and is not installed: %v", err)
	}
	// Read by Python, not by this test: looking at them here makes go test run it again when they change.
	for _, name := range []string{"lightq.py", "test_lightq.py"} {
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	b := brokertest.Start(t, loop.Config{Bind: "127.0.0.1"})
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-B", "-m", "unittest", "-v", "test_lightq")
	cmd.Env = append(os.Environ(), "LIGHTQ_ADDR="+strings.TrimPrefix(b.URI(), "tcp://"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("python3 -m unittest test_lightq: %v (%v)\n%s", err, ctx.Err(), out)
	}
}
