package cli

import "strings"

// Nearest returns the word that s was most likely meant to be: one of which it is the beginning, or that differs in at most
// two letters, and fewer than half of them. It returns "" if there is none.
func Nearest(s string, words []string) string {
	if s == "" {
		return ""
	}
	best, least := "", min(2, (len(s)-1)/2)+1
	for _, w := range words {
		if d := distance(strings.ReplaceAll(strings.ToLower(s), "_", "-"), w); d < least {
			best, least = w, d
		}
	}
	if best != "" {
		return best
	}
	for _, w := range words {
		if len(s) > 2 && strings.HasPrefix(w, s) {
			return w
		}
	}
	return ""
}

// distance is how many letters have to be put in, taken out, changed or swapped with their neighbour to make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
