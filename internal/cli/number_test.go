package cli

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for s, want := range map[string]uint64{
		"0": 0, "1": 1, "1048588": 1048588, "64KiB": 64 << 10, "64K": 64 << 10, "1MiB": 1 << 20, "128M": 128 << 20,
		"2GiB": 2 << 30, "2G": 2 << 30, "8589934591GiB": 8589934591 << 30,
	} {
		if got, ok := ParseSize(s); !ok || got != want {
			t.Errorf("ParseSize(%q) = %d, %v", s, got, ok)
		}
	}
	for _, s := range []string{
		"", "KiB", "-1", "+1", "1.5MiB", "1e6", "10GB", "10MB", "10kB", "10k", "10 MiB", "0x10", "1MiBMiB", "1KM", "1B", "1i", "64MiB ",
		"18446744073709551616", "8589934593GiB",
	} {
		if got, ok := ParseSize(s); ok {
			t.Errorf("ParseSize(%q) = %d", s, got)
		}
	}
}

func TestSizeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(0, 1<<62).Draw(t, "n")
		if rapid.Bool().Draw(t, "round") {
			n &^= 1<<20 - 1
		}
		if got, ok := ParseSize(FormatSize(n)); !ok || got != n {
			t.Fatalf("%d became %q, and that %d", n, FormatSize(n), got)
		}
	})
}

func TestFormats(t *testing.T) {
	for _, tc := range [][2]string{
		{FormatSize(64 << 20), "64MiB"},
		{FormatSize(1 << 30), "1GiB"},
		{FormatSize(1536), "1536"},
		{FormatSize(0), "0"},
		{Thousands(0), "0"},
		{Thousands(999), "999"},
		{Thousands(1000), "1,000"},
		{Thousands(-1234567), "-1,234,567"},
		{Thousands(-999), "-999"},
		{Thousands(math.MaxInt64), "9,223,372,036,854,775,807"},
		{Plural(1, "partition"), "1 partition"},
		{Plural(0, "partition"), "0 partitions"},
		{Plural(1234, "record"), "1,234 records"},
		{ShortTime(0), "0 ns"},
		{ShortTime(999), "999 ns"},
		{ShortTime(81_300), "81.3 µs"},
		{ShortTime(4_250_000), "4.25 ms"},
		{ShortTime(1_300_000_000), "1.300 s"},
		{ShortTime(-81_300), "-81.3 µs"},
	} {
		if tc[0] != tc[1] {
			t.Errorf("got %q, want %q", tc[0], tc[1])
		}
	}
}

func TestInDigits(t *testing.T) {
	for s, want := range map[string]int64{
		"1e6": 1_000_000, "1E6": 1_000_000, "1.5e6": 1_500_000, "10k": 10_000, "10K": 10_000, "2M": 2_000_000, "1.25M": 1_250_000, "3g": 3_000_000_000,
		"1_000": 1000, "1,000,000": 1_000_000, "5": 5, "-1k": -1000, "9e18": 9_000_000_000_000_000_000, "1e+3": 1000,
	} {
		if n, ok := inDigits(s); !ok || n != want {
			t.Errorf("%s is %d, %t", s, n, ok)
		}
	}
	for _, s := range []string{"", "k", "e6", "1e", "1e19", "1e6k", "1.2345k", "1.5", "ten", "10kk", "10MB", "0x10", "1e-3", "1e999", "."} {
		if n, ok := inDigits(s); ok {
			t.Errorf("%q is %d", s, n)
		}
	}
}
