package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// machine names where and when figures were measured. Figures of two machines cannot be compared.
type machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"` // usable by this program
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"` // of LightQ, when the build recorded it
	Date     string `json:"date"`               // RFC 3339, UTC
}

func thisMachine(now time.Time) machine {
	m := machine{
		CPU:   cpuModel(),
		Cores: runtime.NumCPU(),
		OS:    runtime.GOOS,
		Arch:  runtime.GOARCH,
		Go:    runtime.Version(),
		Date:  now.UTC().Format(time.RFC3339),
	}
	if m.CPU == "" {
		m.CPU = "unknown CPU"
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		m.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		modified := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				m.Revision = s.Value
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
		if m.Revision != "" && modified {
			m.Revision += "+changes"
		}
	}
	return m
}

func (m machine) String() string {
	s := fmt.Sprintf("%s, %d cores, %s/%s, %s, %s, %s", m.CPU, m.Cores, m.OS, m.Arch, m.Kernel, m.Go, m.Date)
	if m.Revision != "" {
		s += ", LightQ " + m.Revision
	}
	return s
}
