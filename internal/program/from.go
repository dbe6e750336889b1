package program

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
)

// A start is what --from means.
type start struct {
	where client.Start
	text  string // for people: earliest, latest, an offset, a time with its zone
	since int64  // of a time, in milliseconds; 0: it is none
	// expect is where a partition would begin, were it not for a group that stands elsewhere. nil: that cannot be told.
	expect func(client.Position) codec.Offset
}

// fromLayouts are the forms of a time, in local time where they have no zone.
var fromLayouts = []string{
	time.RFC3339, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04",
	"2006-01-02 15:04:05Z07:00", "2006-01-02 15:04Z07:00", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02",
}

// parseFrom reads --from. now is what an age is counted back from, with the zone of times that have none.
func parseFrom(s string, now time.Time) (start, error) {
	switch s {
	case "earliest":
		return start{where: client.Earliest(), text: s, expect: func(p client.Position) codec.Offset { return p.Start }}, nil
	case "latest":
		return start{where: client.Latest(), text: s, expect: func(p client.Position) codec.Offset { return p.High }}, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 && s[0] != '+' {
		offset := codec.Offset(n)
		return start{where: client.AtOffset(offset), text: "offset " + s, expect: func(client.Position) codec.Offset { return offset }}, nil
	}
	refuse := func(why string) (start, error) {
		return start{}, cli.Usagef("-o, --from %q: %s", s, why)
	}
	at, ok := parseTime(s, now)
	switch {
	case ok && at.After(now):
		return refuse("that time has not come: latest means what comes from now on")
	case ok && at.UnixMilli() < 0:
		return refuse("that is before 1970: earliest means everything that is kept")
	case ok:
		return start{where: client.AtTime(at), text: at.Format(time.RFC3339), since: at.UnixMilli()}, nil
	case s == "beginning" || s == "start" || s == "first":
		return refuse("it must be earliest, latest, an offset or a time: earliest is meant")
	case s == "end" || s == "last" || s == "now":
		return refuse("it must be earliest, latest, an offset or a time: latest is meant")
	}
	return refuse("it must be earliest, latest, an offset (0 or more), a time such as 2026-01-31T15:04:05Z, or an age such as 90s, 10m or 2d")
}

// parseTime reads a time, or an age as what it was then.
func parseTime(s string, now time.Time) (t time.Time, ok bool) {
	for _, layout := range fromLayouts {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, true
		}
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil && days[0] != '+' {
			return now.AddDate(0, 0, -int(n)), true
		}
	}
	if s != "" && '0' <= s[0] && s[0] <= '9' {
		if age, err := time.ParseDuration(s); err == nil {
			return now.Add(-age), true
		}
	}
	return t, false
}

// attachedText is the line that says on standard error where a consumer of these positions stands, and what is strange about it.
// Everything that is published once it is written will be received: scripts wait for it.
func (s start) attachedText(topic, group string, partitions int, positions []client.Position) string {
	line := fmt.Sprintf("attached %s: %s, ", topic, cli.Plural(int64(partitions), "partition"))
	switch {
	case group == "":
		return line + "from " + s.text
	case s.elsewhere(positions):
		return line + "in group " + group + " (which goes on where it stands)"
	}
	return line + "in group " + group + " (a new group starts at " + s.text + ")"
}

// elsewhere reports whether the consumer of these positions, a member of a group, does not begin where a new group would.
func (s start) elsewhere(positions []client.Position) bool {
	if s.expect == nil {
		return false
	}
	for _, p := range positions {
		if p.Begin != s.expect(p) {
			return true
		}
	}
	return false
}
