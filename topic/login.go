package topic

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"sync"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic/catalogue"
)

// A login holds a topic's credentials: in the catalogue a slow verifier, which withstands a thief of files, and in memory, from the
// first time that the password was seen on, a salted digest, which takes a microsecond.
type login struct {
	user     string
	verifier *catalogue.Verifier // nil: the registry has no data directory

	mu     sync.Mutex // never held for as long as the verifier takes: loops wait for it
	salt   [32]byte
	digest []byte // nil: the password was not seen yet
}

// newLogin makes a login. With a verifier it takes a few milliseconds of CPU.
func newLogin(user, password string, stored bool) *login {
	l := &login{user: user}
	if stored {
		l.verifier = catalogue.NewVerifier(password)
	}
	l.remember(password)
	return l
}

// remember keeps a digest of the right password. mu is held, or nobody else has l yet.
func (l *login) remember(password string) {
	if _, err := rand.Read(l.salt[:]); err != nil {
		panic(fmt.Sprintf("BUG: crypto/rand failed: %v", err)) // documented never to happen
	}
	l.digest = loginSum(l.salt, l.user, password)
}

func loginSum(salt [32]byte, user, password string) []byte {
	m := hmac.New(sha256.New, salt[:])
	fmt.Fprintf(m, "%d:%s%s", len(user), user, password)
	return m.Sum(nil)
}

func (l *login) check(user, password string) bool {
	l.mu.Lock()
	salt, digest := l.salt, l.digest
	l.mu.Unlock()
	if digest != nil {
		return hmac.Equal(digest, loginSum(salt, user, password))
	}
	right := l.verifier.Check(password) // whatever the user: the time must not tell
	if !right || subtle.ConstantTimeCompare([]byte(user), []byte(l.user)) != 1 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remember(password)
	return true
}

// SlowLogin reports whether CheckLogin takes milliseconds: until the password was right for the first time after a restart.
func (t *Topic) SlowLogin() bool {
	l := t.login
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.digest == nil
}

// CheckLogin compares credentials with those given when the topic was created, in constant time. A topic without credentials
// takes any. The error does not say which of the two was wrong.
func (t *Topic) CheckLogin(user, password string) error {
	if t.login == nil || t.login.check(user, password) {
		return nil
	}
	return codec.Errorf(codec.CodeNotAllowed, "user or password of topic %s is wrong", t.name)
}
