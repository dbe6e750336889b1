package cli

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// MB is the megabyte of every figure that the programs print.
const MB = 1 << 20

var sizeUnits = []struct {
	name  string
	shift uint
}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}

// FormatSize writes a number of bytes with the largest binary unit that leaves a whole number: 64MiB, 1048588.
func FormatSize(n uint64) string {
	for _, u := range sizeUnits {
		if n != 0 && bits.TrailingZeros64(n) >= int(u.shift) {
			return strconv.FormatUint(n>>u.shift, 10) + u.name
		}
	}
	return strconv.FormatUint(n, 10)
}

// ParseSize reads what FormatSize writes, and K, M and G for short. Other units are refused: KB and MB mean a power of ten to
// some and a power of two to others.
func ParseSize(s string) (n uint64, ok bool) {
	digits := strings.TrimRight(s, "KMGiB")
	shift := uint(0)
	if unit := s[len(digits):]; unit != "" {
		for _, u := range sizeUnits {
			if unit == u.name || unit == u.name[:1] {
				shift = u.shift
			}
		}
		if shift == 0 {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || strings.HasPrefix(digits, "+") || n > 1<<(63-shift) {
		return 0, false
	}
	return n << shift, true
}

// inDigits returns the whole number that somebody meant who wrote 1e6, 10k, 2M, 1_000 or 1,000. There a k is a thousand.
func inDigits(s string) (n int64, ok bool) {
	digits := strings.NewReplacer(",", "", "_", "").Replace(s)
	zeros := 0
	for unit, n := range map[string]int{"k": 3, "K": 3, "m": 6, "M": 6, "g": 9, "G": 9} {
		if d, ok := strings.CutSuffix(digits, unit); ok {
			digits, zeros = d, n
			break
		}
	}
	if mantissa, exponent, ok := strings.Cut(strings.ToLower(digits), "e"); ok && zeros == 0 {
		e, err := strconv.ParseUint(strings.TrimPrefix(exponent, "+"), 10, 8)
		if err != nil || e > 18 {
			return 0, false
		}
		digits, zeros = mantissa, int(e)
	}
	if whole, part, ok := strings.Cut(digits, "."); ok && len(part) <= zeros {
		digits, zeros = whole+part, zeros-len(part)
	}
	n, err := strconv.ParseInt(digits+strings.Repeat("0", zeros), 10, 64)
	return n, err == nil && digits != ""
}

// Thousands writes a whole number with commas: 10,000,000.
func Thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Plural writes a count and its noun: 1 partition, 4 partitions.
func Plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Thousands(n) + " " + noun + "s"
}

// ShortTime writes nanoseconds as a time of a size that people read: 812 ns, 81.3 µs, 4.25 ms, 1.300 s.
func ShortTime(ns int64) string {
	switch d := float64(ns); {
	case ns < 0:
		return "-" + ShortTime(-ns)
	case ns < 1e3:
		return fmt.Sprintf("%d ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%.1f µs", d/1e3)
	case ns < 1e9:
		return fmt.Sprintf("%.2f ms", d/1e6)
	default:
		return fmt.Sprintf("%.3f s", d/1e9)
	}
}
