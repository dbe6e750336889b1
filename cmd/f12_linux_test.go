package cmd

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestF12FirstProcess: F12. As the first process of a container a broker gets no signal that it does not ask for: SIGTERM and SIGINT
// still drain it, and SIGHUP still does nothing.
func TestF12FirstProcess(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("CI runs as root, and this takes root")
		}
		t.Skip("a namespace of process numbers takes root")
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		h := newHome(t)
		p := startProgram(t, func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		}, "lightq-broker", h.args()...).ready()
		c := dial(t, h.server())
		publishKept(t, c, 100)
		p.signal(syscall.SIGHUP)
		p.says("SIGHUP: nothing changes")
		p.signal(sig)
		if code := p.wait(); code != 0 {
			t.Errorf("%v: exit code %d:\n%s", sig, code, p.text())
		}
		h.start(t).ready()
		readAll(t, dial(t, h.server()), "kept", 100)
	}
}
