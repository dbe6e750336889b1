package cli

import (
	"fmt"
	"os"

	"github.com/pkg/profile"
	"github.com/spf13/pflag"
)

// A Profile is a profiling session of a whole run, for tuning. Zero: none.
type Profile struct {
	kind string
	dir  string
}

var profileKinds = map[string]func(*profile.Profile){
	"cpu":   profile.CPUProfile,
	"mem":   profile.MemProfile,
	"mutex": profile.MutexProfile,
	"block": profile.BlockProfile,
	"trace": profile.TraceProfile,
}

// Flags adds --profile and --profile-dir.
func (p *Profile) Flags(fs *pflag.FlagSet) {
	Choose(fs, &p.kind, "profile", "", "", Choice{Names: []string{"cpu", "mem", "mutex", "block", "trace"}}, "KIND",
		"write a profile of the whole run: cpu, mem, mutex, block or trace")
	Text(fs, &p.dir, "profile-dir", "", ".", "DIR", "where the profile goes")
}

// Start begins the session and returns what ends it and writes the file. The caller runs that on every way out: nothing else
// does, so that no signal handler of the profiler's can cut a drain short.
func (p *Profile) Start() (stop func(), err error) {
	if p.kind == "" {
		return func() {}, nil
	}
	// The profiler ends the process when it cannot write; so find out before it does.
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make profile directory: %w", err)
	}
	probe, err := os.CreateTemp(p.dir, "profile-")
	if err != nil {
		return nil, fmt.Errorf("write profile: %w", err)
	}
	_ = probe.Close()
	_ = os.Remove(probe.Name())
	return profile.Start(profileKinds[p.kind], profile.ProfilePath(p.dir), profile.NoShutdownHook, profile.Quiet).Stop, nil
}
