package main

import "testing"

func TestParseCPUInfo(t *testing.T) {
	for text, want := range map[string]string{
		"processor\t: 0\nmodel name\t: AMD EPYC 9R14\nprocessor\t: 1\nmodel name\t: other\n": "AMD EPYC 9R14",
		"processor : 0\nBogoMIPS : 50.00\n\nHardware : BCM2835\n":                            "BCM2835",
		"processor : 0\nBogoMIPS : 50.00\n":                                                  "",
		"model name :\n":                                                                     "",
		"":                                                                                   "",
	} {
		if got := parseCPUInfo(text); got != want {
			t.Errorf("%q: %q instead of %q", text, got, want)
		}
	}
}
