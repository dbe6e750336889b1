//go:build !race && !invariants

package codec

func mangle([]byte) {}
