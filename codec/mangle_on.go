//go:build race || invariants

package codec

// mangle overwrites released slabs, so that a use after the last Release shows as a bad checksum in every test run with -race.
func mangle(b []byte) {
	for i := range b {
		b[i] = 0xDB
	}
}
