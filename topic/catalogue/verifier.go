package catalogue

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"slices"
)

// DefaultIterations of a new verifier: what RFC 7677 asks for at least, and a few milliseconds of work.
const DefaultIterations = 4096

// A Verifier proves a password without holding it: the stored key and the server key of SCRAM-SHA-256 (RFC 5802, RFC 7677).
type Verifier struct {
	Salt       []byte `json:"salt"`
	Iterations int    `json:"iterations"`
	StoredKey  []byte `json:"stored_key"`
	ServerKey  []byte `json:"server_key"`
}

// NewVerifier makes the verifier of a password, with a salt of its own. It takes a few milliseconds of CPU.
func NewVerifier(password string) *Verifier {
	salt := make([]byte, 16)
	if _, err := rand.Read(salt); err != nil {
		panic(fmt.Sprintf("BUG: crypto/rand failed: %v", err)) // documented never to happen
	}
	return newVerifier(password, salt, DefaultIterations)
}

func newVerifier(password string, salt []byte, iterations int) *Verifier {
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		panic(fmt.Sprintf("BUG: PBKDF2 of %d iterations: %v", iterations, err)) // it refuses unsound sizes only
	}
	mac := func(text string) []byte {
		m := hmac.New(sha256.New, salted)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	return &Verifier{Salt: salt, Iterations: iterations, StoredKey: stored[:], ServerKey: mac("Server Key")}
}

// Check says whether the password is the one that the verifier was made of. It takes a few milliseconds of CPU, the same for
// every password.
func (v *Verifier) Check(password string) bool {
	return subtle.ConstantTimeCompare(newVerifier(password, v.Salt, v.Iterations).StoredKey, v.StoredKey) == 1
}

func (v *Verifier) clone() Verifier {
	return Verifier{
		Salt: slices.Clone(v.Salt), Iterations: v.Iterations,
		StoredKey: slices.Clone(v.StoredKey), ServerKey: slices.Clone(v.ServerKey),
	}
}

func (v *Verifier) check() error {
	switch {
	case v == nil:
		return nil
	case len(v.Salt) < 1 || len(v.Salt) > maxKeyBytes:
		return fmt.Errorf("the verifier has a salt of %d bytes", len(v.Salt))
	case v.Iterations < 1 || v.Iterations > maxIterations:
		return fmt.Errorf("the verifier has %d iterations", v.Iterations)
	case len(v.StoredKey) != sha256.Size || len(v.ServerKey) != sha256.Size:
		return fmt.Errorf("the verifier has keys of %d and %d bytes, not %d", len(v.StoredKey), len(v.ServerKey), sha256.Size)
	}
	return nil
}
