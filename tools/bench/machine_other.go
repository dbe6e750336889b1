//go:build !linux

package main

import "golang.org/x/sys/unix"

// cpuModel is the processor's name, "" where the kernel does not tell it.
func cpuModel() string {
	for _, name := range []string{"machdep.cpu.brand_string", "hw.model"} {
		if s, err := unix.Sysctl(name); err == nil && s != "" {
			return s
		}
	}
	return ""
}
