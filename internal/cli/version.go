package cli

import (
	"runtime"
	"runtime/debug"
)

// Build says what a program was built from.
type Build struct {
	Program  string `json:"program"`
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source, where the build knows it
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// BuildOf returns what is known of this executable.
func BuildOf(program string) Build {
	b := Build{Program: program, Version: "(devel)", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+modified"
		}
	}
	if b.Revision != "" {
		b.Revision += modified
	}
	return b
}

// Version is the module's version.
func Version() string { return BuildOf("").Version }

func (b Build) String() string {
	s := b.Program + " " + b.Version + " " + b.Go + " " + b.OS + "/" + b.Arch
	if b.Revision != "" {
		s += " " + b.Revision
	}
	return s
}
