package loop

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/bytebufferpool"

	"github.com/lightio/lightq/codec"
)

// The JSON admin protocol of the original: a connection whose first byte is '{' sends one object a line and gets one a line
// back. It is for scripts and for people with nc; docs/PROTOCOL.md specifies it.

const (
	// maxJSONBytes bounds a request. The first of a connection has the limit of every protocol here before the hello, 4 KiB.
	maxJSONBytes = 64 << 10
	// unendedJSONBytes is the largest request that is also understood without a newline behind it, as printf sends it: an
	// object shows its own end, but looking for it again with every byte that arrives must stay cheap.
	unendedJSONBytes = 4 << 10
	// jsonIdle is how long a connection may be silent between requests: a person types.
	jsonIdle = 5 * time.Minute
)

type jsonRequest struct {
	Cmd            string `json:"cmd"`
	AdminUserID    string `json:"admin_user_id"`
	AdminPassword  string `json:"admin_password"`
	Topic          string `json:"topic"`
	BrokerType     string `json:"broker_type"`
	UserID         string `json:"user_id"`
	Password       string `json:"password"`
	Type           string `json:"type"`
	ConnectionType string `json:"connection_type"`
	Partitions     uint32 `json:"partitions"`
}

type jsonReply struct {
	Cmd         string  `json:"cmd,omitempty"`
	Status      string  `json:"status"`
	Code        string  `json:"code,omitempty"`
	Description string  `json:"description,omitempty"`
	Pong        bool    `json:"pong,omitempty"`
	Topic       string  `json:"topic,omitempty"`
	BindURI     string  `json:"bind_uri,omitempty"`
	Partition   *uint32 `json:"partition,omitempty"`
	*jsonStats
}

type jsonStats struct {
	TopicType         string `json:"topic_type"`
	QueueSize         uint64 `json:"queue_size"`
	MessagesReceived  uint64 `json:"messages_received"`
	MessagesSent      uint64 `json:"messages_sent"`
	PublishersCount   uint64 `json:"publishers_count"`
	SubscribersCount  uint64 `json:"subscribers_count"`
	TotalBytesWritten uint64 `json:"total_bytes_written"`
	TotalBytesRead    uint64 `json:"total_bytes_read"`
}

// readJSON handles the requests that have arrived, and reports whether to go on.
func (s *session) readJSON() bool {
	if s.asked > 0 {
		return false // requests are answered in their order
	}
	b := s.t.Peek()
	if len(b) == 0 {
		return false
	}
	end := bytes.IndexByte(b, '\n')
	take := len(b)
	if end >= 0 {
		take = end + 1
	}
	limit := maxJSONBytes
	if s.login {
		limit = codec.MaxLoginFrameBytes
	}
	if len(s.stash)+take > limit {
		s.failJSON("", codec.Errorf(codec.CodeFrameTooLarge, "a request has at most %d bytes, the first of a connection %d",
			maxJSONBytes, codec.MaxLoginFrameBytes))
		return true
	}
	s.stash = append(s.stash, b[:take]...)
	s.t.Discard(take)
	line := bytes.TrimSpace(s.stash)
	if end < 0 && (len(line) == 0 || len(line) > unendedJSONBytes || line[len(line)-1] != '}' || !json.Valid(line)) {
		return true
	}
	if len(line) > 0 {
		s.serveJSON(line)
	}
	s.stash = nil
	return true
}

func (s *session) serveJSON(line []byte) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	var r jsonRequest
	err := d.Decode(&r)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("bytes follow the object")
		}
	}
	if err != nil {
		s.failJSON(r.Cmd, codec.Errorf(codec.CodeMalformedFrame, "not a request, one JSON object a line: %s", err))
		return
	}
	s.loggedIn()
	if !s.l.b.waitsJSON(&r) {
		s.replyJSON(&r, s.answerJSON)
		return
	}
	// Nothing is read meanwhile, so that a client which has shut down its sending side is still there for the answer.
	err = s.offload(func() func() {
		reply, err := s.answerJSON(&r)
		return func() {
			s.replyJSON(&r, func(*jsonRequest) (jsonReply, error) { return reply, err })
			s.goOnReading()
		}
	})
	if err != nil {
		s.replyJSON(&r, func(*jsonRequest) (jsonReply, error) { return jsonReply{}, err })
		return
	}
	s.t.Pause()
}

func (s *session) replyJSON(r *jsonRequest, answer func(*jsonRequest) (jsonReply, error)) {
	reply, err := answer(r)
	if err != nil {
		reply = jsonError(err)
	}
	reply.Cmd = r.Cmd
	s.sendJSON(reply)
}

// waitsJSON reports whether a request may wait for the disk, or costs milliseconds.
func (b *Broker) waitsJSON(r *jsonRequest) bool {
	if !b.topics.Stored() {
		return false
	}
	if r.Cmd == "create_topic" {
		return true
	}
	for _, name := range []string{r.Topic, partitionName(r.Topic)} {
		if t, err := b.topics.Get(name); err == nil && t.SlowLogin() {
			return true
		}
	}
	return false
}

// partitionName is NAME of NAME_K, else the empty string.
func partitionName(s string) string {
	name, _, _ := cutPartition(s)
	return name
}

func (s *session) answerJSON(r *jsonRequest) (jsonReply, error) {
	switch r.Cmd {
	case "ping":
		return jsonReply{Status: "ok", Pong: true}, nil
	case "create_topic":
		return s.createJSON(r)
	case "join":
		return s.joinJSON(r)
	case "stats":
		return s.statsJSON(r)
	}
	return jsonReply{}, codec.Errorf(codec.CodeUnknownFrame, "cmd %q is unknown: ping, create_topic, join and stats are", r.Cmd)
}

func (s *session) createJSON(r *jsonRequest) (jsonReply, error) {
	cfg := &s.l.b.cfg
	if cfg.AdminPassword != "" && !sameSecret(r.AdminUserID, r.AdminPassword, cfg.AdminUser, cfg.AdminPassword) {
		return jsonReply{}, codec.Errorf(codec.CodeNotAllowed, "admin user or password is wrong")
	}
	settings := codec.TopicSettings{Partitions: r.Partitions}
	if r.BrokerType != "" {
		storage, ok := codec.ParseStorage(r.BrokerType)
		if !ok {
			return jsonReply{}, codec.Errorf(codec.CodeInvalidSetting, "broker_type %q is unknown: queue, direct, file and queue_file are", r.BrokerType)
		}
		settings.Storage = storage
	}
	t, created, err := s.l.b.createTopic(r.Topic, settings, r.UserID, r.Password)
	if err != nil {
		return jsonReply{}, err
	}
	reply := jsonReply{Status: "ok", Topic: t.Name(), Description: "created"}
	if !created {
		reply.Description = "exists, unchanged"
	}
	return reply, nil
}

func (s *session) joinJSON(r *jsonRequest) (jsonReply, error) {
	switch r.Type {
	case "pub", "sub", "pull":
	default:
		return jsonReply{}, codec.Errorf(codec.CodeInvalidSetting, "type %q is unknown: pub, sub and pull are", r.Type)
	}
	if s.l.b.draining.Load() {
		return jsonReply{}, codec.Errorf(codec.CodeDraining, "the broker is stopping")
	}
	reply := jsonReply{Status: "ok", Topic: r.Topic, BindURI: addrURI(s.t.LocalAddr())}
	t, err := s.l.b.topics.Get(r.Topic)
	if err != nil {
		// The original names partition K of topic NAME NAME_K, counting from 1.
		name, index, ok := cutPartition(r.Topic)
		if !ok {
			return jsonReply{}, err
		}
		whole, missing := s.l.b.topics.Get(name)
		if missing != nil {
			return jsonReply{}, err
		}
		if _, err := whole.Partition(index); err != nil {
			return jsonReply{}, err
		}
		t = whole
		reply.Topic, reply.Partition = name, &index
	}
	if err := t.CheckLogin(r.UserID, r.Password); err != nil {
		return jsonReply{}, err
	}
	return reply, nil
}

// cutPartition takes NAME_K apart, if s is that. A K beyond all partitions stays so.
func cutPartition(s string) (name string, index uint32, ok bool) {
	i := strings.LastIndexByte(s, '_')
	if i < 0 {
		return "", 0, false
	}
	digits := s[i+1:]
	if digits == "" || digits[0] == '0' || strings.Trim(digits, "0123456789") != "" {
		return "", 0, false
	}
	number, _ := strconv.ParseUint(digits, 10, 32) // out of range: the largest
	return s[:i], uint32(number) - 1, true
}

func (s *session) statsJSON(r *jsonRequest) (jsonReply, error) {
	t, err := s.l.b.topics.Get(r.Topic)
	if err != nil {
		return jsonReply{}, err
	}
	if err := t.CheckLogin(r.UserID, r.Password); err != nil {
		return jsonReply{}, err
	}
	st := jsonStats{TopicType: t.Settings().Storage.String()}
	for _, p := range t.Describe().Partitions {
		st.QueueSize += p.QueueSize
		st.MessagesReceived += p.RecordsIn
		st.MessagesSent += p.RecordsOut
		st.PublishersCount += uint64(p.Publishers)
		st.SubscribersCount += uint64(p.Subscriptions)
		st.TotalBytesWritten += p.BytesIn
		st.TotalBytesRead += p.BytesOut
	}
	return jsonReply{Status: "ok", Topic: t.Name(), jsonStats: &st}, nil
}

func jsonError(err error) jsonReply {
	e := wireError(err)
	detail := e.Detail
	if detail == "" {
		detail = e.Code.Info().Meaning
	}
	return jsonReply{Status: "error", Code: e.Code.String(), Description: detail}
}

// failJSON answers what is not a request, and ends the connection.
func (s *session) failJSON(cmd string, err *codec.WireError) {
	reply := jsonError(err)
	reply.Cmd = cmd
	s.sendJSON(reply)
	s.closeSoon(err.Code, err.Detail)
}

func (s *session) sendJSON(r jsonReply) {
	buf := bytebufferpool.Get()
	defer bytebufferpool.Put(buf)
	e := json.NewEncoder(buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		s.l.b.log.Error("reply not encoded", "conn", s.id, "err", err)
		return
	}
	s.send(append(s.frame(), buf.B...))
}

// sameSecret compares both in constant time.
func sameSecret(user, password, wantUser, wantPassword string) bool {
	u := subtle.ConstantTimeCompare([]byte(user), []byte(wantUser))
	p := subtle.ConstantTimeCompare([]byte(password), []byte(wantPassword))
	return u&p == 1
}

// addrURI is the form in which clients take an address.
func addrURI(a net.Addr) string {
	if a == nil {
		return ""
	}
	if a.Network() == "unix" {
		return "unix://" + a.String()
	}
	return "tcp://" + a.String()
}
