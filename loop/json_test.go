package loop

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

// A jsonPeer speaks the JSON admin protocol.
type jsonPeer struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func dialJSON(t testing.TB, b *Broker) *jsonPeer {
	t.Helper()
	p := dial(t, b)
	return &jsonPeer{t: t, conn: p.conn, r: bufio.NewReader(p.conn)}
}

func (p *jsonPeer) write(text string) {
	p.t.Helper()
	_ = p.conn.SetWriteDeadline(time.Now().Add(frameLimit))
	if _, err := io.WriteString(p.conn, text); err != nil {
		p.t.Fatal(err)
	}
}

// reply returns the next line, which must be one object.
func (p *jsonPeer) reply() map[string]any {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(frameLimit))
	line, err := p.r.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%v after %q", err, line)
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		p.t.Fatalf("%q: %v", line, err)
	}
	return m
}

// ask sends a line and checks the fields of the reply that are in want.
func (p *jsonPeer) ask(request string, want map[string]any) map[string]any {
	p.t.Helper()
	p.write(request + "\n")
	return p.expect(request, want)
}

func (p *jsonPeer) expect(request string, want map[string]any) map[string]any {
	p.t.Helper()
	got := p.reply()
	for field, v := range want {
		if got[field] != v {
			p.t.Errorf("%.200s: %s is %v, want %v, of %v", request, field, got[field], v, got)
		}
	}
	return got
}

// refused asks for what must be an error of the code, with a description that holds the words. The connection goes on.
func (p *jsonPeer) refused(code codec.Code, request string, words ...string) {
	p.t.Helper()
	p.refusal(p.ask(request, map[string]any{"status": "error", "code": code.String()}), words)
	p.ask(`{"cmd":"ping"}`, map[string]any{"cmd": "ping", "status": "ok", "pong": true})
}

// thrown asks for what is an error of the code and the end of the connection.
func (p *jsonPeer) thrown(code codec.Code, request string, words ...string) {
	p.t.Helper()
	p.write(request)
	p.refusal(p.expect(request, map[string]any{"status": "error", "code": code.String()}), words)
	p.ended()
}

func (p *jsonPeer) refusal(got map[string]any, words []string) {
	p.t.Helper()
	description, _ := got["description"].(string)
	for _, w := range append(words, "") {
		if description == "" || !strings.Contains(description, w) {
			p.t.Errorf("described as %q, want %q in it", description, w)
		}
	}
}

func (p *jsonPeer) ended() {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(frameLimit))
	line, err := p.r.ReadString('\n')
	var timeout net.Error
	if err == nil || line != "" || errors.As(err, &timeout) && timeout.Timeout() {
		p.t.Errorf("got %q and %v, want the end of the connection", line, err)
	}
}

func TestJSONCommands(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		p := dialJSON(t, b)
		if got := p.ask(`{"cmd":"ping"}`, map[string]any{"cmd": "ping", "status": "ok", "pong": true}); len(got) != 3 {
			t.Errorf("ping: %v", got)
		}

		// create_topic: idempotent, differences are told.
		ok := map[string]any{"cmd": "create_topic", "status": "ok", "description": "created"}
		ok["topic"] = "open"
		p.ask(`{"cmd":"create_topic","topic":"open"}`, ok)
		ok["topic"] = "orders"
		p.ask(`{"cmd":"create_topic","topic":"orders","broker_type":"queue","partitions":3,"user_id":"ann","password":"secret"}`, ok)
		ok["topic"] = "now"
		p.ask(`{"password":"","topic":"now","broker_type":"direct","cmd":"create_topic","admin_user_id":"x","admin_password":"y"}`, ok)
		again := map[string]any{"cmd": "create_topic", "status": "ok", "topic": "orders", "description": "exists, unchanged"}
		p.ask(`{"cmd":"create_topic","topic":"orders"}`, again)
		p.ask(`{"cmd":"create_topic","topic":"orders","broker_type":"queue","partitions":3,"user_id":"ann","password":"secret"}`, again)
		p.refused(codec.CodeTopicExists, `{"cmd":"create_topic","topic":"orders","partitions":2}`, "3 partitions, not 2")
		p.refused(codec.CodeTopicExists, `{"cmd":"create_topic","topic":"orders","broker_type":"direct"}`, "storage is queue, not direct")
		p.refused(codec.CodeTopicExists, `{"cmd":"create_topic","topic":"orders","user_id":"ann","password":"other"}`, "credentials")
		p.refused(codec.CodeTopicExists, `{"cmd":"create_topic","topic":"open","user_id":"ann","password":"secret"}`)
		p.refused(codec.CodeInvalidSetting, `{"cmd":"create_topic","topic":"new","broker_type":"file"}`, "file")
		p.refused(codec.CodeInvalidSetting, `{"cmd":"create_topic","topic":"new","broker_type":"queue_file"}`, "queue_file")
		p.refused(codec.CodeInvalidSetting, `{"cmd":"create_topic","topic":"new","broker_type":"disc"}`, "disc")
		p.refused(codec.CodeInvalidSetting, `{"cmd":"create_topic","topic":"new","partitions":4097}`, "4096")
		p.refused(codec.CodeInvalidName, `{"cmd":"create_topic"}`, "name")
		p.refused(codec.CodeInvalidName, `{"cmd":"create_topic","topic":"a/b"}`, "A-Z a-z 0-9 . _ -")
		if _, err := b.topics.Get("new"); err == nil {
			t.Error("a refused create_topic has made a topic")
		}

		// join.
		uri := "tcp://" + b.Addrs()[0].String()
		switch b.Addrs()[0].Network() {
		case "unix":
			uri = "unix://" + b.Addrs()[0].String()
		case "in-process":
			uri = ""
		}
		for _, kind := range []string{"pub", "sub", "pull"} {
			want := map[string]any{"cmd": "join", "status": "ok", "topic": "orders"}
			if uri != "" {
				want["bind_uri"] = uri
			}
			got := p.ask(`{"cmd":"join","type":"`+kind+`","topic":"orders","user_id":"ann","password":"secret","connection_type":"zmq"}`, want)
			if _, ok := got["partition"]; ok {
				t.Errorf("join of the whole topic: %v", got)
			}
			want["topic"] = "open"
			p.ask(`{"cmd":"join","type":"`+kind+`","topic":"open","user_id":"anybody","password":"anything"}`, want)
		}
		for k := 1; k <= 3; k++ {
			p.ask(fmt.Sprintf(`{"cmd":"join","type":"sub","topic":"orders_%d","user_id":"ann","password":"secret"}`, k),
				map[string]any{"status": "ok", "topic": "orders", "partition": float64(k - 1)})
		}
		for _, k := range []string{"4", "4294967297", "18446744073709551617", "99999999999999999999999999"} {
			p.refused(codec.CodeUnknownPartition, `{"cmd":"join","type":"sub","topic":"orders_`+k+`","user_id":"ann","password":"secret"}`, "0 to 2")
		}
		for _, k := range []string{"0", "01", "-1", "1.", "x", ""} {
			p.refused(codec.CodeUnknownTopic, `{"cmd":"join","type":"sub","topic":"orders_`+k+`","user_id":"ann","password":"secret"}`)
		}
		p.refused(codec.CodeInvalidName, `{"cmd":"join","type":"sub","topic":"orders_+1","user_id":"ann","password":"secret"}`)
		for _, wrong := range []string{
			`"user_id":"ann","password":"Secret"`, `"user_id":"ann"`, `"password":"secret"`, `"user_id":"anns","password":"ecret"`, `"user_id":"bob","password":"secret"`,
		} {
			p.refused(codec.CodeNotAllowed, `{"cmd":"join","type":"pub","topic":"orders",`+wrong+`}`, "user or password of topic orders is wrong")
			p.refused(codec.CodeNotAllowed, `{"cmd":"join","type":"pub","topic":"orders_1",`+wrong+`}`)
			p.refused(codec.CodeNotAllowed, `{"cmd":"stats","topic":"orders",`+wrong+`}`, "user or password of topic orders is wrong")
		}
		p.refused(codec.CodeUnknownTopic, `{"cmd":"join","type":"pub","topic":"nothing"}`, "nothing")
		p.refused(codec.CodeInvalidSetting, `{"cmd":"join","type":"push","topic":"open"}`, "push")
		p.refused(codec.CodeInvalidSetting, `{"cmd":"join","topic":"open"}`)
		// A topic whose own name looks like a partition's is meant itself.
		p.ask(`{"cmd":"create_topic","topic":"orders_2"}`, map[string]any{"status": "ok"})
		if got := p.ask(`{"cmd":"join","type":"sub","topic":"orders_2"}`, map[string]any{"status": "ok", "topic": "orders_2"}); got["partition"] != nil {
			t.Errorf("join of orders_2: %v", got)
		}

		// stats.
		native := dial(t, b).hello()
		native.open(1, "orders", 0, 1)
		native.open(2, "orders", 2, 1)
		native.subscribe(3, codec.Subscribe{Topic: "orders", CreditBytes: 1000})
		batch := batchOf([]byte("a"), []byte("b"))
		native.write(publishFrame(1, 1, 0, batch))
		native.write(publishFrame(2, 1, 0, batch))
		for got := 0; got < 3; got++ { // two confirms and what is delivered
			native.next()
		}
		stats := p.ask(`{"cmd":"stats","topic":"orders","user_id":"ann","password":"secret"}`, map[string]any{
			"cmd": "stats", "status": "ok", "topic": "orders", "topic_type": "queue", "queue_size": 4.0,
			"messages_received": 4.0, "messages_sent": 2.0, "publishers_count": 2.0, "subscribers_count": 1.0,
			"total_bytes_written": float64(2 * len(batch)), "total_bytes_read": float64(len(batch)),
		})
		fields := []string{
			"cmd", "messages_received", "messages_sent", "publishers_count", "queue_size", "status", "subscribers_count",
			"topic", "topic_type", "total_bytes_read", "total_bytes_written",
		}
		if got := slices.Sorted(maps.Keys(stats)); !slices.Equal(got, fields) {
			t.Errorf("stats has the fields %q", got)
		}
		native.pull(4, "orders", "g", 1)
		native.deliver()
		p.ask(`{"cmd":"stats","topic":"orders","user_id":"ann","password":"secret"}`, map[string]any{
			"subscribers_count": 2.0, "queue_size": 2.0, // what the group has had of partition 0 is no backlog; 2 has no group
		})
		p.ask(`{"cmd":"stats","topic":"now"}`, map[string]any{"topic_type": "direct", "queue_size": 0.0})
		p.refused(codec.CodeUnknownTopic, `{"cmd":"stats","topic":"nothing"}`)
		p.refused(codec.CodeInvalidName, `{"cmd":"stats"}`)
		p.refused(codec.CodeUnknownFrame, `{"cmd":"drop_topic"}`, "drop_topic", "ping, create_topic, join and stats")
		p.refused(codec.CodeUnknownFrame, `{}`)

		s := native.describe("orders").Settings
		if s.Partitions != 3 || s.Storage != codec.StorageQueue || s.RingBytes != 64<<20 {
			t.Errorf("made with %+v", s)
		}
	})
}

func TestJSONAdminPassword(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{AdminUser: "root", AdminPassword: "top"}))
		p := dialJSON(t, b)
		for _, wrong := range []string{
			``, `,"admin_user_id":"root"`, `,"admin_password":"top"`, `,"admin_user_id":"root","admin_password":"to"`,
			`,"admin_user_id":"roottop","admin_password":""`, `,"admin_user_id":"Root","admin_password":"top"`,
		} {
			p.refused(codec.CodeNotAllowed, `{"cmd":"create_topic","topic":"orders"`+wrong+`}`, "admin user or password is wrong")
		}
		if _, err := b.topics.Get("orders"); err == nil {
			t.Error("a create_topic that was not allowed has made a topic")
		}
		p.ask(`{"cmd":"create_topic","topic":"orders","admin_user_id":"root","admin_password":"top"}`, map[string]any{"status": "ok"})
		p.refused(codec.CodeNotAllowed, `{"cmd":"create_topic","topic":"orders"}`)
		p.ask(`{"cmd":"join","type":"pub","topic":"orders"}`, map[string]any{"status": "ok"})
		p.ask(`{"cmd":"stats","topic":"orders"}`, map[string]any{"status": "ok"})
	})
}

// However a request arrives, it is answered once and in order.
func TestJSONFraming(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		pong := map[string]any{"cmd": "ping", "status": "ok", "pong": true}

		p := dialJSON(t, b)
		p.write(`{"cmd":"ping"}`) // without an end of line
		p.expect("no newline", pong)
		p.write("\n\r\n \t\n") // it comes later, and empty lines with it
		p.ask("  {\t\"cmd\" : \"ping\" }\r", pong)
		for i := range 3 {
			p.write(`{"cmd":"create_topic",` + "\t" + `"topic":"t` + fmt.Sprint(i) + `"}` + "\n")
		}
		for i := range 3 {
			p.expect("pipelined", map[string]any{"cmd": "create_topic", "topic": fmt.Sprintf("t%d", i)})
		}
		p.write(strings.Repeat(`{"cmd":"ping"}`+"\n", 1000)) // in one write
		for range 1000 {
			p.expect("glued", pong)
		}
		for _, c := range `{"cmd":"create_topic","topic":"split","user_id":"}}","password":"{\"\\"}` + "\n" {
			p.write(string(c)) // byte by byte, with braces in strings
		}
		p.expect("split", map[string]any{"cmd": "create_topic", "topic": "split", "status": "ok"})
		p.ask(`{"cmd":"join","type":"sub","topic":"split","user_id":"}}","password":"{\"\\"}`, map[string]any{"status": "ok"})
		p.ask(`{"cmd":"\u0070ing"}`, map[string]any{"cmd": "ping", "pong": true})
		p.ask(`{"cmd":"<&>\u2028"}`, map[string]any{"cmd": "<&>\u2028", "status": "error"})

		// The largest request, and one byte more.
		const most = 64 << 10
		pad := func(n int) string {
			text := `{"cmd":"ping","user_id":"`
			return text + strings.Repeat("x", n-len(text)-len(`"}`)-1) + `"}` + "\n"
		}
		p.write(pad(most))
		p.expect("the largest", pong)
		for _, request := range []string{pad(most + 1), "{" + strings.Repeat(" ", most)} {
			known := dialJSON(t, b)
			known.ask(`{"cmd":"ping"}`, pong)
			known.thrown(codec.CodeFrameTooLarge, request, "65536")
		}
		// The first of a connection has the limit of a hello.
		first := dialJSON(t, b)
		first.write(pad(codec.MaxLoginFrameBytes))
		first.expect("the largest first one", pong)
		dialJSON(t, b).thrown(codec.CodeFrameTooLarge, pad(codec.MaxLoginFrameBytes+1), "4096")
		dialJSON(t, b).thrown(codec.CodeFrameTooLarge, "{"+strings.Repeat(" ", codec.MaxLoginFrameBytes), "4096")
		p.write(pad(4 << 10)[:4<<10-1]) // the largest that is understood without its newline
		p.expect("4 KiB without a newline", pong)
		p.write("\n")
		p.ask(`{"cmd":"ping"}`, pong)

		// The client's end of the stream comes behind its requests.
		if half, ok := p.conn.(interface{ CloseWrite() error }); ok {
			last := dialJSON(t, b)
			last.write(`{"cmd":"ping"}` + "\n" + `{"cmd":"ping"}`)
			_ = last.conn.(interface{ CloseWrite() error }).CloseWrite()
			last.expect("half-closed", pong)
			last.expect("half-closed", pong)
			last.ended()
			_ = half.CloseWrite()
			p.ended()
		}
	})
}

// What is no request is answered with what is wrong and closes the connection; nothing is done.
func TestJSONMalformed(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		for _, c := range []struct{ request, word string }{
			{`{"cmd":"create_topic","topic":"x"`, "EOF"},
			{`{"cmd":"create_topic","topic":"x"}}`, "follow"},
			{`{"cmd":"create_topic","topic":"x"}{"cmd":"ping"}`, "follow"},
			{`{"cmd":"create_topic","topic":"x"} x`, "follow"},
			{`{"cmd":"create_topic","topic":"x","shards":1}`, "shards"},
			{`{"cmd":"create_topic","topic":"x","":1}`, "unknown"},
			{`{"cmd":"create_topic","topic":7}`, "topic"},
			{`{"cmd":"create_topic","topic":["x"]}`, "topic"},
			{`{"cmd":"create_topic","topic":{"x":1}}`, "topic"},
			{`{"cmd":"create_topic","topic":true}`, "topic"},
			{`{"cmd":"create_topic","topic":"x","partitions":"2"}`, "partitions"},
			{`{"cmd":"create_topic","topic":"x","partitions":-1}`, "partitions"},
			{`{"cmd":"create_topic","topic":"x","partitions":1.5}`, "partitions"},
			{`{"cmd":"create_topic","topic":"x","partitions":4294967296}`, "partitions"},
			{`{"cmd":["create_topic"],"topic":"x"}`, "cmd"},
			{`{cmd:"create_topic"}`, "character"},
			{`{'cmd':'ping'}`, "character"},
			{"{\"cmd\":\"create_topic\",\"topic\":\"x\x00\"}", "character"},
			{strings.Repeat(`{"cmd":`, 20_000/7), ""}, // deep
			{`{` + strings.Repeat(`"cmd":"ping",`, 4000) + `}`, "character"},
		} {
			if len(c.request) < codec.MaxLoginFrameBytes {
				dialJSON(t, b).thrown(codec.CodeMalformedFrame, c.request+"\n", c.word)
			}
			// The same behind a good one.
			p := dialJSON(t, b)
			p.ask(`{"cmd":"ping"}`, map[string]any{"pong": true})
			p.thrown(codec.CodeMalformedFrame, c.request+"\n", c.word)
		}
		for _, request := range []string{`[]`, `"ping"`, `7`, `x`, "GET / HTTP/1.1\r", "\x00\x00\x00\x24"} { // what a first line cannot be
			p := dialJSON(t, b)
			p.ask(`{"cmd":"ping"}`, map[string]any{"pong": true})
			p.thrown(codec.CodeMalformedFrame, request+"\n")
		}
		if n, _ := b.topics.Count(); n != 0 {
			t.Errorf("requests that are none have made %d topics", n)
		}
		eventually(t, "the connections to be closed", func() bool { return b.conns.Load() == 0 && b.logins.Load() == 0 })
	})
}

// A connection that brings no request in time is told in its own language.
func TestJSONLoginDeadline(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{LoginDeadline: time.Hour}})
	used, late := dialJSON(t, b), dialJSON(t, b)
	used.ask(`{"cmd":"ping"}`, map[string]any{"pong": true})
	const begun = `{"cmd":"pi`
	late.write(begun)
	eventually(t, "what it begins with to be read", func() bool {
		return countSessions(t, b, func(s *session) bool { return s.phase == phaseJSON }) == 2
	})
	onLoops(t, b, func(l *loopState) {
		for _, s := range l.sessions {
			s.opened = l.now.Add(-time.Hour)
			s.tick()
		}
	})
	late.refusal(late.expect(begun, map[string]any{"status": "error", "code": codec.CodeLoginTimeout.String()}), nil)
	late.ended()
	used.ask(`{"cmd":"ping"}`, map[string]any{"pong": true}) // who has asked once may take a rest
}

// A client that asks and does not read is not heard until it reads; what waits for it is bounded.
func TestJSONPaused(t *testing.T) {
	b := startBroker(t, Config{})
	p := dialJSON(t, b)
	const lines = 200_000 // 9 MB of replies, more than sockets hold
	go func() {
		chunk := strings.Repeat(`{"cmd":"ping"}`+"\n", 1000)
		for range lines / 1000 {
			if _, err := io.WriteString(p.conn, chunk); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	eventually(t, "reading to be paused", func() bool {
		dialJSON(t, b).ask(`{"cmd":"ping"}`, map[string]any{"pong": true})
		return countSessions(t, b, func(s *session) bool { return s.paused }) == 1
	})
	if n := countSessions(t, b, func(s *session) bool { return s.out.bytes > b.limits.controlBacklogHigh+1000 }); n != 0 {
		t.Error("more waits for it than the limit")
	}
	for i := range lines {
		if i%1000 == 0 {
			_ = p.conn.SetReadDeadline(time.Now().Add(testDeadline))
		}
		if line, err := p.r.ReadString('\n'); err != nil || !strings.Contains(line, `"pong":true`) {
			t.Fatalf("reply %d: %q, %v", i, line, err)
		}
	}
}
