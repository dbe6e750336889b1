package loop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// A session is the broker's side of one native connection. It belongs to its loop.
type session struct {
	l    *loopState
	t    transport
	id   uint64
	peer string // address of the peer, for logs
	door *acceptor

	phase   phase
	client  string // the name in its hello
	opened  time.Time
	lastIn  time.Time // bytes were last received
	lastOut time.Time // bytes last left
	worked  time.Time // batches or results were last put into the outbox
	closeAt time.Time // of a lingering close

	// Reading. A frame's header section is parsed in place, in what the transport peeks at; only one that is split over
	// two reads is collected in stash.
	stash []byte
	body  publishBody

	handles map[uint32]handle
	last    *publishing // the handle of the previous publish frame

	out     outbox
	active  fifo // what may have something to take
	fetches map[*fetch]struct{}
	asked   int // requests that are served away from the loop
	jobs    jobQueue
	dirty   bool // in loopState.dirty
	paused  bool // reading is paused: the peer does not read its control frames
	held    bool // reading is paused: body waits for memory
	shut    bool // CloseWrite was called
	login   bool // counted in Broker.logins

	heldAt time.Time
}

type phase uint8

const (
	phaseHello   phase = iota // waiting for the hello
	phaseReady                // at work
	phaseJSON                 // speaks the JSON admin protocol
	phaseClosing              // an error was sent: whatever arrives is thrown away until the peer closes or closeAt
	phaseClosed
)

// A handle is an open partition of a session: *publishing or *subscription.
type handle interface {
	// close serves the client's request. It must not end the session, whose frame is still in use: an error does that.
	close(s *session, corr uint32) error
	// drop lets go of everything: the connection is gone.
	drop(s *session)
}

// publishBody is a publish frame whose payload is still arriving, straight into its slab.
type publishBody struct {
	h     *publishing // nil: there is none
	msg   codec.Publish
	size  int         // bytes of the payload
	slab  *codec.Slab // nil: buf is memory of its own, and waits for some
	buf   []byte      // the place of the payload, or of its first bytes
	have  int         // bytes that have arrived
	own   bool        // the slab is this frame's alone
	began time.Time

	announced int64 // bytes counted as announced in the broker's memory
	seen      int   // bytes that had arrived at the last tick
	refused   bool  // found no memory: what is still to come is thrown away
}

// A deliverer may have something for the peer: a subscription, or a fetch.
type deliverer interface{ deliver(s *session) }

// fifo is a queue of deliverers; each is in it at most once, so handles and maxFetches bound it.
type fifo struct {
	list []deliverer
	head int
}

func (q *fifo) len() int { return len(q.list) - q.head }

func (q *fifo) push(v deliverer) {
	if q.head > 0 && len(q.list) == cap(q.list) {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, v)
}

func (q *fifo) pop() deliverer {
	v := q.list[q.head]
	q.list[q.head] = nil
	q.head++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return v
}

func newSession(l *loopState, t transport, door *acceptor) *session {
	now := time.Now()
	s := &session{
		l: l, t: t, door: door, id: l.b.nextConn.Add(1), peer: addrString(t.RemoteAddr()),
		opened: now, lastIn: now, lastOut: now,
	}
	l.sessions[s.id] = s
	l.b.conns.Add(1)
	s.login = true
	limits := &l.b.limits
	var refused error
	if l.b.logins.Add(1) > int64(limits.Logins) {
		refused = codec.Errorf(codec.CodeTooManyConnections, "%d connections have not said hello yet", limits.Logins)
	}
	if !l.b.loginsBy.add(t.RemoteAddr(), limits.LoginsPerAddress) && refused == nil {
		refused = codec.Errorf(codec.CodeTooManyConnections, "%d connections from this address have not said hello yet", limits.LoginsPerAddress)
	}
	if refused != nil {
		l.begin()
		s.fail(0, 0, refused)
		l.end()
	}
	return s
}

// loggedIn ends the time in which a connection has only the login deadline.
func (s *session) loggedIn() {
	if s.login {
		s.login = false
		s.l.b.logins.Add(-1)
		s.l.b.loginsBy.remove(s.t.RemoteAddr())
	}
}

// readable implements handler.
func (s *session) readable() {
	s.l.begin()
	s.lastIn = s.l.now
	s.read()
	s.l.end()
}

// writable implements handler.
func (s *session) writable() {
	s.l.begin()
	s.out.blocked = false
	s.markDirty()
	s.l.end()
}

// closed implements handler.
func (s *session) closed(err error) {
	l := s.l
	l.begin()
	phase := s.phase
	s.phase = phaseClosed
	s.loggedIn()
	for _, h := range s.handles {
		h.drop(s)
	}
	s.handles = nil
	for f := range s.fetches {
		f.drop()
	}
	s.held = false
	s.body.release(&l.b.memory)
	s.body = publishBody{}
	s.out.drop()
	delete(l.sessions, s.id)
	if len(l.sessions) == 0 {
		l.noneHeld()
		l.b.forget(l)
	}
	s.door.done(s.t.RemoteAddr())
	l.b.conns.Add(-1)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, ErrStopped) && phase == phaseReady {
		if more, ok := l.b.closings.allow(codec.CodeNone, l.now); ok {
			l.b.log.Info("connection lost", "conn", s.id, "peer", s.peer, "client", s.client, "err", err, "not_logged", more)
		}
	}
	l.end()
}

// read consumes what the transport has.
func (s *session) read() {
	for s.phase != phaseClosed && !s.paused && !s.held {
		if s.phase == phaseClosing {
			b := s.t.Peek()
			if len(b) == 0 {
				return
			}
			s.t.Discard(len(b))
			continue
		}
		if s.phase == phaseJSON {
			if !s.readJSON() {
				return
			}
			continue
		}
		if s.body.h != nil {
			if !s.readBody() {
				return
			}
			continue
		}
		if !s.readFrame() {
			return
		}
	}
}

// view returns the next need bytes in one piece, or nil if they have not arrived; then what has is kept in stash.
// consume takes them. The bytes are valid until the next call on the transport.
func (s *session) view(need int) []byte {
	for {
		b := s.t.Peek()
		if len(s.stash) == 0 && len(b) >= need {
			return b[:need]
		}
		n := min(need-len(s.stash), len(b))
		if n > 0 {
			s.stash = append(s.stash, b[:n]...)
			s.t.Discard(n)
		}
		if len(s.stash) >= need {
			return s.stash[:need]
		}
		if n == 0 {
			return nil
		}
	}
}

// consume takes what view returned.
func (s *session) consume(n int) {
	if len(s.stash) == 0 {
		s.t.Discard(n)
		return
	}
	s.stash = s.stash[:0]
	if cap(s.stash) > 1024 {
		s.stash = nil
	}
}

const (
	// maxControlBytes bounds a frame other than publish: its fields fit a header section, its payload is empty.
	maxControlBytes = codec.HeaderBytes + codec.MaxHeaderSize
	// publishStart is how much of a publish payload must have arrived before memory is taken for all of it: the memory
	// follows what was received, not what was announced.
	publishStart = 4 << 10
)

// readFrame handles the next frame, or begins it, and reports whether to go on.
func (s *session) readFrame() bool {
	limit := s.l.b.limits.maxFrameBytes
	if s.phase == phaseHello {
		limit = codec.MaxLoginFrameBytes
		if b := s.t.Peek(); len(s.stash) == 0 && len(b) > 0 && b[0] == '{' {
			s.phase = phaseJSON
			return true
		}
		if b := s.view(4); b == nil {
			return false
		} else if looks := foreign(b); looks != "" {
			s.fail(0, 0, codec.Errorf(codec.CodeForeignProtocol,
				"this looks like %s, the port speaks LightQ's protocol in plain text", looks))
			return true
		}
	}
	b := s.view(codec.HeaderBytes)
	if b == nil {
		// The rest may never come: what has may be enough to refuse it.
		if part := s.stash; len(part) >= 4 && len(part) < codec.HeaderBytes {
			var whole [codec.HeaderBytes]byte
			copy(whole[:], part)
			if _, err := codec.ParseHeader(whole[:], limit); err != nil {
				s.fail(0, 0, err)
				return true
			}
		}
		return false
	}
	h, err := codec.ParseHeader(b, limit)
	if err != nil {
		s.fail(0, 0, err)
		return true
	}
	if s.phase == phaseHello && h.Type != codec.TypeHello {
		s.fail(h.Correlation, 0, codec.Errorf(codec.CodeHelloExpected, "the first frame is %s, not hello", h.Type))
		return true
	}
	if h.Type == codec.TypePublish {
		return s.beginPublish(h)
	}
	if h.FrameBytes() > maxControlBytes {
		s.fail(h.Correlation, h.Handle, codec.Errorf(codec.CodeFrameTooLarge, "a %s frame has %d bytes, the limit is %d",
			h.Type, h.FrameBytes(), maxControlBytes))
		return true
	}
	b = s.view(h.FrameBytes())
	if b == nil {
		return false
	}
	err = s.dispatch(h, b[codec.HeaderBytes:])
	if s.phase == phaseClosed {
		return false
	}
	s.consume(h.FrameBytes())
	if err != nil {
		s.reply(h.Correlation, h.Handle, err)
	}
	return true
}

// foreign names the protocol that the first four bytes of a connection belong to, if it is not ours.
func foreign(b []byte) string {
	if b[0] == 0x16 && b[1] == 0x03 {
		return "TLS"
	}
	switch string(b) {
	case "GET ", "POST", "PUT ", "HEAD", "DELE", "OPTI", "PATC", "CONN", "TRAC", "PRI ":
		return "HTTP"
	}
	return ""
}

// dispatch handles one whole control frame. body is valid during the call. An error is sent to the client.
func (s *session) dispatch(h codec.Header, body []byte) error {
	section := body[:h.HeaderSize]
	switch {
	case h.Flags&codec.FlagReply != 0:
		return codec.Errorf(codec.CodeMalformedFrame, "a client does not send replies (%s)", h.Type)
	case s.phase == phaseReady && h.Flags&codec.FlagIgnorable != 0 && !served(h.Type):
		return nil // whatever it holds
	case len(body) != len(section):
		return codec.Errorf(codec.CodeMalformedFrame, "a %s frame has no payload", h.Type)
	case h.Correlation == 0 && answered(h.Type):
		return codec.Errorf(codec.CodeMalformedFrame, "a %s frame with correlation 0 could not be answered", h.Type)
	}
	if s.phase == phaseReady {
		switch h.Type {
		case codec.TypeHello:
			return codec.Errorf(codec.CodeHelloExpected, "a second hello")
		case codec.TypeCredit:
			return s.credit(h, section)
		case codec.TypeHeartbeat:
			return codec.ParseEmpty(h.Type, section)
		case codec.TypeCreate:
			return s.create(h, section)
		case codec.TypeDescribe:
			return s.describe(h, section)
		case codec.TypeOpen:
			return s.open(h, section)
		case codec.TypeSubscribe:
			return s.subscribe(h, section)
		case codec.TypeClose:
			return s.closeHandle(h, section)
		case codec.TypeList:
			return s.list(h, section)
		case codec.TypeAlter:
			return s.alter(h, section)
		case codec.TypeDelete:
			return s.delete(h, section)
		case codec.TypePurge:
			return s.purge(h, section)
		case codec.TypeStats:
			return s.stats(h, section)
		case codec.TypeProducer:
			return s.producer(h, section)
		case codec.TypeFetch:
			return s.fetch(h, section)
		}
		if int(h.Type) < len(codec.Types) && codec.Types[h.Type].Reserved && h.Type != 0 {
			return codec.Errorf(codec.CodeNotYet, "%s is not built yet", h.Type)
		}
		return codec.Errorf(codec.CodeUnknownFrame, "a client does not send %s frames", h.Type)
	}
	return s.hello(h, section)
}

// answered reports whether frames of a type get an answer with their correlation: all requests, and drafts.
func answered(t codec.Type) bool {
	switch t {
	case codec.TypeCredit, codec.TypeHeartbeat:
		return false
	}
	return int(t) < len(codec.Types) && (served(t) || codec.Types[t].Reserved)
}

// served reports whether dispatch serves frames of a type.
func served(t codec.Type) bool {
	switch t {
	case codec.TypeHello, codec.TypeCredit, codec.TypeHeartbeat, codec.TypeCreate, codec.TypeDescribe, codec.TypeOpen,
		codec.TypeSubscribe, codec.TypeClose, codec.TypeList, codec.TypeAlter, codec.TypeDelete, codec.TypePurge, codec.TypeStats,
		codec.TypeProducer, codec.TypeFetch:
		return true
	}
	return false
}

func (s *session) hello(h codec.Header, section []byte) error {
	m, err := codec.ParseHello(section)
	if err != nil {
		return err
	}
	if m.MinVersion > codec.Version || m.MaxVersion < codec.MinVersion || m.MinVersion > m.MaxVersion {
		return codec.Errorf(codec.CodeUnsupportedVersion, "the client speaks versions %d to %d, the broker %d to %d",
			m.MinVersion, m.MaxVersion, codec.MinVersion, codec.Version)
	}
	s.client = m.Name
	s.phase = phaseReady
	s.loggedIn()
	version := min(m.MaxVersion, codec.Version)
	s.send(codec.AppendHello(s.frame(), h.Correlation, true, codec.Hello{
		MinVersion: version, MaxVersion: version, Name: s.l.b.cfg.Name,
		MaxFrameBytes:   uint32(s.l.b.limits.maxFrameBytes),
		MaxBatchBytes:   codec.DefaultMaxBatchBytes,
		HeartbeatMillis: uint32(s.l.b.limits.Heartbeat.Milliseconds()),
	}))
	s.l.b.log.Debug("connected", "conn", s.id, "peer", s.peer, "client", s.client)
	return nil
}

// partition looks up what a request names.
func (s *session) partition(name string, index uint32) (*topic.Topic, *topic.Partition, error) {
	if s.l.b.draining.Load() {
		return nil, nil, codec.Errorf(codec.CodeDraining, "the broker is stopping")
	}
	t, err := s.l.b.topics.Get(name)
	if err != nil {
		return nil, nil, err
	}
	p, err := t.Partition(index)
	return t, p, err
}

// checkHandle checks that num may become a handle.
func (s *session) checkHandle(num uint32) error {
	switch {
	case num == 0:
		return codec.Errorf(codec.CodeMalformedFrame, "0 is not a handle")
	case s.handles[num] != nil:
		return codec.Errorf(codec.CodeHandleInUse, "handle %d is in use", num)
	case len(s.handles) >= s.l.b.limits.HandlesPerConn:
		return codec.Errorf(codec.CodeTooManyHandles, "the connection has %d handles, which is the limit", len(s.handles))
	}
	return nil
}

func (s *session) addHandle(num uint32, h handle) {
	if s.handles == nil {
		s.handles = map[uint32]handle{}
	}
	s.handles[num] = h
}

func (s *session) closeHandle(h codec.Header, section []byte) error {
	if err := codec.ParseEmpty(h.Type, section); err != nil {
		return err
	}
	v := s.handles[h.Handle]
	if v == nil {
		return codec.Errorf(codec.CodeUnknownHandle, "handle %d is not open", h.Handle)
	}
	return v.close(s, h.Correlation)
}

// frame returns where to append a control frame, which send then takes.
func (s *session) frame() []byte { return s.out.frame(s.l.b.slabs) }

// send queues a control frame that was appended to what frame returned.
func (s *session) send(b []byte) {
	s.out.commit(b)
	s.markDirty()
	if s.out.control > s.l.b.limits.controlBacklogHigh && !s.paused && s.phase <= phaseJSON {
		s.paused = true // the peer does not read its answers: hear no more questions until it has
		s.t.Pause()
	}
}

// wireError returns what of err goes to the client.
func wireError(err error) *codec.WireError {
	var e *codec.WireError
	if errors.As(err, &e) {
		return e
	}
	return codec.Errorf(codec.CodeInternal, "")
}

// reply answers a request that cannot be served; a fatal error also ends the session.
func (s *session) reply(corr, handle uint32, err error) {
	e := wireError(err)
	if e.Code == codec.CodeInternal {
		s.l.b.log.Error("request failed", "conn", s.id, "peer", s.peer, "err", err)
	}
	if e.Code.Info().Fatal || s.phase == phaseHello {
		s.fail(corr, handle, e)
		return
	}
	s.send(codec.AppendError(s.frame(), corr, handle, e))
}

// fail sends an error and closes the connection, so that the peer can still read why: what it sends meanwhile is thrown
// away for a moment, since closing a socket with unread bytes would reset it.
func (s *session) fail(corr, handle uint32, err error) {
	e := wireError(err)
	s.send(codec.AppendError(s.frame(), corr, handle, e))
	s.closeSoon(e.Code, e.Detail)
}

// lingerFor is how long a connection that was sent a fatal error may take to read it.
const lingerFor = time.Second

func (s *session) closeSoon(code codec.Code, detail string) {
	if s.phase >= phaseClosing {
		return
	}
	if more, ok := s.l.b.closings.allow(code, s.l.now); ok {
		s.l.b.log.Info("connection closed", "conn", s.id, "peer", s.peer, "client", s.client, "code", code, "detail", detail, "not_logged", more)
	}
	s.quit(s.l.now.Add(lingerFor))
}

// quit ends the work of a session: what waits still leaves, then the sending side is shut, and whatever arrives is thrown away
// until the peer closes, or until closeAt.
func (s *session) quit(closeAt time.Time) {
	s.phase = phaseClosing
	s.loggedIn()
	s.closeAt = closeAt
	if s.paused || s.held {
		s.paused, s.held = false, false
		s.t.Resume()
	}
	s.stash = nil
	s.body.release(&s.l.b.memory)
	s.body = publishBody{}
	for num, h := range s.handles {
		h.drop(s)
		delete(s.handles, num)
	}
	for f := range s.fetches {
		f.drop()
	}
	s.last = nil
	s.markDirty()
}

// tick looks at the session's deadlines.
func (s *session) tick() {
	now := s.l.now
	limits := &s.l.b.limits
	switch s.phase {
	case phaseHello:
		if now.Sub(s.opened) >= limits.LoginDeadline {
			s.fail(0, 0, codec.Errorf(codec.CodeLoginTimeout, "no hello within %s", limits.LoginDeadline))
		}
	case phaseJSON:
		if s.login && now.Sub(s.opened) >= limits.LoginDeadline || now.Sub(s.lastIn) >= jsonIdle {
			s.failJSON("", codec.Errorf(codec.CodeLoginTimeout, "no request has come in time"))
		}
	case phaseReady:
		s.tickFetches()
		s.tickMemory()
		if s.phase != phaseReady {
			return
		}
		if silent := now.Sub(s.lastIn); silent >= 3*limits.Heartbeat && !s.paused && !s.held {
			s.fail(0, 0, codec.Errorf(codec.CodeHeartbeatTimeout, "nothing was heard for %s", silent.Round(time.Second)))
		} else if now.Sub(s.lastOut) >= limits.Heartbeat-tickEvery && s.out.empty() {
			s.send(codec.AppendHeartbeat(s.frame()))
		}
	case phaseClosing:
		if !now.Before(s.closeAt) {
			s.t.Close(nil)
		}
	}
}

func (s *session) unfinished() bool {
	if s.phase != phaseReady && s.phase != phaseJSON {
		return false
	}
	if !s.out.empty() || s.active.len() > 0 || s.asked > 0 || len(s.fetches) > 0 {
		return true
	}
	for _, h := range s.handles {
		if p, ok := h.(*publishing); ok && p.unanswered > 0 {
			return true
		}
	}
	return false
}

// queue puts what may have something for the peer into the queue of the pump, once.
func (s *session) queue(d deliverer, queued *bool) {
	if !*queued {
		*queued = true
		s.active.push(d)
	}
	if !s.out.blocked {
		s.markDirty()
	}
}

func (s *session) markDirty() {
	if !s.dirty {
		s.dirty = true
		s.l.dirty = append(s.l.dirty, s)
	}
}

const (
	// writeBytes is how much of batches is gathered for one writev. 256 KiB fills a loopback socket's buffer; more would
	// only wait here.
	writeBytes = 256 << 10
	// pumpBytes is how much one session may write before others have their turn.
	pumpBytes = 2 << 20
)

// pump writes what waits and what its subscriptions may take, until the socket is full or nothing is left.
func (s *session) pump() {
	if s.phase == phaseClosed {
		return
	}
	for budget := pumpBytes; !s.out.blocked; {
		for s.out.bytes < writeBytes && s.active.len() > 0 && s.phase == phaseReady {
			s.active.pop().deliver(s)
		}
		if s.out.empty() {
			break
		}
		if budget <= 0 {
			s.l.later = append(s.l.later, s)
			s.l.loop.RingLater()
			return
		}
		iov := s.out.iov(s.l.iov[:0])
		n, err := s.t.Writev(iov)
		whole := s.out.bytes
		if len(iov) == maxIOV {
			whole = 0
			for _, b := range iov {
				whole += len(b)
			}
		}
		clear(iov)
		s.l.iov = iov[:0]
		if err != nil {
			s.t.Close(fmt.Errorf("write: %w", err))
			return
		}
		if n > 0 {
			s.lastOut = s.l.now
			s.out.sent(n)
			budget -= n
		}
		if n < whole {
			s.out.blocked = true
		}
	}
	if s.phase == phaseClosing && s.out.empty() && !s.shut {
		s.shut = true
		s.t.CloseWrite()
	}
	if s.paused && s.out.control < s.l.b.limits.controlBacklogHigh/4 {
		s.paused = false
		s.goOnReading()
	}
}

// goOnReading resumes what hold, a peer that does not read its answers or a JSON request that waits for the disk has paused.
func (s *session) goOnReading() {
	if !s.paused && !s.held && (s.phase != phaseJSON || s.asked == 0) {
		s.lastIn = s.l.now // nobody listened meanwhile: its silence begins now
		s.t.Resume()
	}
}

// refuse tells a connection that was not let in why.
func refuse(c net.Conn, why refusal) {
	_, _ = c.Write(codec.AppendError(nil, 0, 0, codec.Errorf(codec.CodeTooManyConnections, "%s", why)))
}
