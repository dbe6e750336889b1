package topic

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"

	"github.com/lightio/lightq/codec"
)

// A login holds a salted digest of a topic's user and password. It lives in memory only, as the topic does, so it need not
// withstand a thief of files; what is stored one day gets a slow verifier.
type login struct {
	salt   [32]byte
	digest []byte
}

func newLogin(user, password string) *login {
	var l login
	if _, err := rand.Read(l.salt[:]); err != nil {
		panic(fmt.Sprintf("BUG: crypto/rand failed: %v", err)) // documented never to happen
	}
	l.digest = l.sum(user, password)
	return &l
}

func (l *login) sum(user, password string) []byte {
	m := hmac.New(sha256.New, l.salt[:])
	fmt.Fprintf(m, "%d:%s%s", len(user), user, password)
	return m.Sum(nil)
}

// CheckLogin compares credentials with those given when the topic was created, in constant time. A topic without credentials
// takes any. The error does not say which of the two was wrong.
func (t *Topic) CheckLogin(user, password string) error {
	if t.login == nil || hmac.Equal(t.login.digest, t.login.sum(user, password)) {
		return nil
	}
	return codec.Errorf(codec.CodeNotAllowed, "user or password of topic %s is wrong", t.name)
}
