package codec

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// How each frame type is used, for the table of docs/PROTOCOL.md: sent by, answer, handle, payload.
var typeColumns = map[Type][4]string{
	TypeHello:     {"both", "reply", "", ""},
	TypeCreate:    {"client", "reply", "", ""},
	TypeDescribe:  {"client", "reply", "", "in the reply: a table"},
	TypeOpen:      {"client", "reply", "yes", ""},
	TypePublish:   {"client", "confirm", "yes", "batches"},
	TypeConfirm:   {"broker", "", "yes", "a table"},
	TypeSubscribe: {"client", "reply", "yes", ""},
	TypeCredit:    {"client", "", "yes", ""},
	TypeDeliver:   {"broker", "", "yes", "batches"},
	TypeHeartbeat: {"both", "", "", ""},
	TypeGoAway:    {"broker", "", "", ""},
	TypeError:     {"broker", "", "maybe", ""},
	TypeClose:     {"client", "reply", "yes", ""},
	TypeList:      {"client", "reply", "", "in the reply: a table"},
	TypeAlter:     {"client", "reply", "", ""},
	TypeDelete:    {"client", "reply", "", ""},
	TypePurge:     {"client", "reply", "", ""},
	TypeStats:     {"client", "reply", "", "in the reply: a table"},
	TypeFetch:     {"client", "reply", "", "in the reply: batches"},
	TypeProducer:  {"client", "reply", "", ""},
}

func typeTable() string {
	var b strings.Builder
	b.WriteString("| number | name | sent by | answer | handle | payload | status |\n|---|---|---|---|---|---|---|\n")
	for _, info := range Types[1:] {
		c, known := typeColumns[info.Type]
		status := "in use"
		if info.Reserved {
			status = "draft"
		}
		if known == info.Reserved {
			status = "CONTRADICTION"
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s | %s |\n", info.Type, info.Name, c[0], c[1], c[2], c[3], status)
	}
	return b.String()
}

func codeTable() string {
	yes := map[bool]string{true: "yes", false: "no"}
	var b strings.Builder
	b.WriteString("| number | name | retriable | fatal | meaning |\n|---|---|---|---|---|\n")
	for _, info := range Codes {
		fmt.Fprintf(&b, "| %d | `%s` | %s | %s | %s |\n", info.Code, info.Name, yes[info.Retriable], yes[info.Fatal], info.Meaning)
	}
	return b.String()
}

// sessionText is the frames of a session as one line of hex each, long ones folded.
func sessionText(t *testing.T, names []string) string {
	var b strings.Builder
	for _, name := range names {
		data, _ := readGolden(t, name)
		arrow := "──►"
		switch h, err := ParseHeader(data, len(data)); {
		case err != nil:
			t.Fatal(err)
		case h.Flags&FlagReply != 0 || h.Type == TypeConfirm || h.Type == TypeDeliver:
			arrow = "◄──"
		}
		fmt.Fprintf(&b, "%s %s, %d bytes\n", arrow, strings.ReplaceAll(name, "_", " "), len(data))
		for row := data; len(row) > 0; row = row[min(32, len(row)):] {
			fmt.Fprintf(&b, "    %s\n", spaced(hex.EncodeToString(row[:min(32, len(row))])))
		}
	}
	return b.String()
}

var (
	docTable = regexp.MustCompile(`(?s)(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)`)
	docHex   = regexp.MustCompile("(?s)(<!-- (golden|session): ([\\w ]+) -->\n```text\n)(.*?)(```\n)")
)

// docs/PROTOCOL.md repeats the tables of frame types and codes, every golden file, and a session made of them.
func TestGoldenProtocolDoc(t *testing.T) {
	path := filepath.Join("..", "docs", "PROTOCOL.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	tables, examples := map[string]bool{}, map[string]bool{}
	want := docTable.ReplaceAllStringFunc(text, func(found string) string {
		m := docTable.FindStringSubmatch(found)
		tables[m[2]] = true
		switch m[2] {
		case "types":
			return m[1] + typeTable() + m[4]
		case "codes":
			return m[1] + codeTable() + m[4]
		}
		t.Errorf("table %q is unknown", m[2])
		return found
	})
	want = docHex.ReplaceAllStringFunc(want, func(found string) string {
		m := docHex.FindStringSubmatch(found)
		if m[2] == "session" {
			tables["session"] = true
			return m[1] + sessionText(t, strings.Fields(m[3])) + m[5]
		}
		examples[m[3]] = true
		_, golden := readGolden(t, m[3])
		return m[1] + golden + m[5]
	})
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != text {
		a, b := strings.Split(text, "\n"), strings.Split(want, "\n")
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Fatalf("%s:%d differs from codec's tables or golden files: %q. go test ./codec -run Golden -update rewrites it",
					path, i+1, a[i])
			}
		}
		t.Fatalf("%s lacks lines of codec's tables or golden files. go test ./codec -run Golden -update rewrites it", path)
	}
	for _, name := range []string{"types", "codes", "session"} {
		if !tables[name] {
			t.Errorf("%s has no %s", path, name)
		}
	}
	for name := range everyGolden(t) {
		if !examples[name] {
			t.Errorf("%s does not show the golden file %s", path, name)
		}
	}
	if strings.Contains(want, "CONTRADICTION") {
		t.Error("typeColumns and Types do not agree on what is in use")
	}
}
