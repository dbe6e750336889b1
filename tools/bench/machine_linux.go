package main

import (
	"os"
	"strings"
)

// cpuModel is the processor's name, "" where the kernel does not tell it.
func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	return parseCPUInfo(string(info))
}

// parseCPUInfo finds the name in the text of /proc/cpuinfo. x86 calls it "model name", some ARM and MIPS kernels otherwise.
func parseCPUInfo(text string) string {
	for _, key := range []string{"model name", "cpu model", "Hardware", "Processor"} {
		for line := range strings.Lines(text) {
			k, v, found := strings.Cut(line, ":")
			if v = strings.TrimSpace(v); found && strings.TrimSpace(k) == key && v != "" {
				return v
			}
		}
	}
	return ""
}
