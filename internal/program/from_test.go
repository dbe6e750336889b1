package program

import (
	"strings"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/internal/cli"
)

// The zone of these tests is two hours east of Greenwich.
var fromNow = time.Date(2026, 3, 10, 12, 0, 0, 0, time.FixedZone("", 2*3600))

func TestParseFrom(t *testing.T) {
	at := func(s string) client.Start {
		v, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return client.AtTime(v)
	}
	for in, want := range map[string]start{
		"earliest":                  {where: client.Earliest(), text: "earliest"},
		"latest":                    {where: client.Latest(), text: "latest"},
		"0":                         {where: client.AtOffset(0), text: "offset 0"},
		"9223372036854775807":       {where: client.AtOffset(1<<63 - 1), text: "offset 9223372036854775807"},
		"2026-01-02T15:04:05Z":      {where: at("2026-01-02T15:04:05Z"), text: "2026-01-02T15:04:05Z"},
		"2026-01-02T15:04:05.25Z":   {where: at("2026-01-02T15:04:05.25Z"), text: "2026-01-02T15:04:05Z"},
		"2026-01-02T15:04:05+01:00": {where: at("2026-01-02T14:04:05Z"), text: "2026-01-02T15:04:05+01:00"},
		"2026-01-02T15:04Z":         {where: at("2026-01-02T15:04:00Z"), text: "2026-01-02T15:04:00Z"},
		"2026-01-02 15:04:05":       {where: at("2026-01-02T13:04:05Z"), text: "2026-01-02T15:04:05+02:00"},
		"2026-01-02T15:04":          {where: at("2026-01-02T13:04:00Z"), text: "2026-01-02T15:04:00+02:00"},
		"2026-01-02":                {where: at("2026-01-01T22:00:00Z"), text: "2026-01-02T00:00:00+02:00"},
		"10m":                       {where: at("2026-03-10T09:50:00Z"), text: "2026-03-10T11:50:00+02:00"},
		"1h30m":                     {where: at("2026-03-10T08:30:00Z"), text: "2026-03-10T10:30:00+02:00"},
		"250ms":                     {where: at("2026-03-10T09:59:59.75Z"), text: "2026-03-10T11:59:59+02:00"},
		"2d":                        {where: at("2026-03-08T10:00:00Z"), text: "2026-03-08T12:00:00+02:00"},
		"1970-01-01T00:00:00Z":      {where: at("1970-01-01T00:00:00Z"), text: "1970-01-01T00:00:00Z"},
	} {
		got, err := parseFrom(in, fromNow)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got.where != want.where || got.text != want.text {
			t.Errorf("%s: %+v %q, want %+v %q", in, got.where, got.text, want.where, want.text)
		}
		if timed := strings.ContainsAny(in, ":-md"); timed != (got.expect == nil) {
			t.Errorf("%s: where it begins is expected: %t", in, got.expect != nil)
		}
	}
}

func TestParseFromRefused(t *testing.T) {
	for in, reason := range map[string]string{
		"yesterday":            "an age such as 90s, 10m or 2d",
		"-1":                   "an offset (0 or more)",
		"-10m":                 "an age such as 90s, 10m or 2d",
		"+5":                   "an offset (0 or more)",
		"1.5":                  "it must be",
		"9223372036854775808":  "it must be",
		"2026-13-02":           "it must be",
		"2026-02-30T00:00:00Z": "it must be",
		"15:04":                "it must be",
		"d":                    "it must be",
		"70000d":               "it must be",
		"":                     "it must be",
		"beginning":            "earliest is meant",
		"end":                  "latest is meant",
		"2026-03-10T12:00:01":  "that time has not come",
		"1969-12-31":           "that is before 1970",
	} {
		_, err := parseFrom(in, fromNow)
		if cli.ExitOf(err) != cli.ExitUsage || !strings.Contains(err.Error(), reason) || !strings.HasPrefix(err.Error(), "-o, --from ") {
			t.Errorf("%q: error %v, want %q", in, err, reason)
		}
	}
}

func TestAttachedText(t *testing.T) {
	positions := []client.Position{{Begin: 3, Start: 3, High: 10}, {Partition: 1, Begin: 7, Start: 7, High: 7}}
	for _, tc := range []struct{ from, group, want string }{
		{"earliest", "", "attached t: 2 partitions, from earliest"},
		{"7", "", "attached t: 2 partitions, from offset 7"},
		{"earliest", "g", "attached t: 2 partitions, in group g (a new group starts at earliest)"},
		{"latest", "g", "attached t: 2 partitions, in group g (which goes on where it stands)"},
		{"7", "g", "attached t: 2 partitions, in group g (which goes on where it stands)"},
		{"2026-01-01T00:00:00Z", "g", "attached t: 2 partitions, in group g (a new group starts at 2026-01-01T00:00:00Z)"},
	} {
		s, err := parseFrom(tc.from, fromNow)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.attachedText("t", tc.group, 2, positions); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.from, got, tc.want)
		}
	}
}
