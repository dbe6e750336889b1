package main

import (
	"math"
	"slices"
	"strconv"

	"github.com/lightio/lightq/internal/cli"
)

// median returns the middle value, the mean of the two middle ones for an even count, 0 for none. It does not change values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// medianOf returns the median of one figure of each item.
func medianOf[T any](items []T, figure func(T) float64) float64 {
	values := make([]float64, 0, len(items))
	for _, it := range items {
		values = append(values, figure(it))
	}
	return median(values)
}

// ratio returns part ÷ whole, 0 where there is no whole.
func ratio(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// perMillion returns what v is for each million of count, 0 for none.
func perMillion(v float64, count int64) float64 {
	return ratio(v*1e6, float64(count))
}

// grouped writes v, rounded, with commas between groups of three digits.
func grouped(v float64) string { return cli.Thousands(int64(math.Round(v))) }

// fixed writes v with the given number of decimals.
func fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
