package program

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
)

// recordOf returns the record that a consumer would get. Headers are names and values in turn; a value of "null" is null.
func recordOf(t testing.TB, offset codec.Offset, key, value []byte, headers ...string) *codec.Record {
	t.Helper()
	var hs []codec.RecordHeader
	for i := 0; i+1 < len(headers); i += 2 {
		h := codec.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])}
		if headers[i+1] == "null" {
			h.Value = nil
		}
		hs = append(hs, h)
	}
	var w codec.BatchBuilder
	w.Reset(nil, 1<<20)
	if !w.Add(1700000000123, key, value, hs) {
		t.Fatal("the record does not fit")
	}
	b := codec.Batch(w.Finish(codec.NoProducer))
	b.SetBase(offset, 0)
	rs := b.Records()
	if !rs.Next() {
		t.Fatal(rs.Err())
	}
	return &rs.Record
}

func TestOwnForm(t *testing.T) {
	plain := recordOf(t, 42, []byte("k1"), []byte("hello"), "a", "1", "b", "", "c", "null")
	null := recordOf(t, 7, nil, nil)
	empty := recordOf(t, 8, []byte{}, []byte{})
	for _, tc := range []struct {
		format string
		null   []byte
		r      *codec.Record
		want   string
	}{
		{`%s\n`, nil, plain, "hello\n"},
		{`%t[%p]@%o %T %k=%s (%K,%S) %h`, nil, plain, "orders[3]@42 1700000000123 k1=hello (2,5) a=1,b=,c"},
		{`%h`, []byte("NULL"), plain, "a=1,b=,c=NULL"},
		{`100%% \x25t\\\t\0\r%s%s`, nil, plain, "100% %t\\\t\x00\rhellohello"},
		{`%%%s%%`, nil, plain, "%hello%"},
		{`%k|%s|%K|%S|%h`, nil, null, "||-1|-1|"},
		{`%k|%s|%K|%S|%h`, []byte("∅"), null, "∅|∅|-1|-1|"},
		{`%k|%s|%K|%S|%h`, []byte("∅"), empty, "||0|0|"},
		{`→%s←`, nil, plain, "→hello←"},
	} {
		parts, err := parseForm(tc.format)
		if err != nil {
			t.Errorf("%s: %v", tc.format, err)
			continue
		}
		f := &ownForm{topic: "orders", parts: parts, null: tc.null}
		if got := string(f.append([]byte("before "), 3, tc.r)); got != "before "+tc.want {
			t.Errorf("%s: got %q, want %q", tc.format, got, tc.want)
		}
	}
}

// TestFormRefused: what is unknown is named, and everything that is known is listed.
func TestFormRefused(t *testing.T) {
	for format, reason := range map[string]string{
		"%q":     "%q is unknown",
		"%s %é":  "%é is unknown",
		"%s\\n%": "nothing stands behind the last %",
		"%5o":    "%5 is unknown",
		`\y%s`:   `behind \ stands n, r, t, 0, \ or xHH`,
		`%s\`:    `behind \ stands n, r, t, 0, \ or xHH`,
		`\x4%s`:  `behind \ stands n, r, t, 0, \ or xHH`,
		`\xzz%s`: `behind \x stand two hexadecimal digits`,
	} {
		_, err := parseForm(format)
		if err == nil || cli.ExitOf(err) != cli.ExitUsage {
			t.Errorf("%q: error %v", format, err)
			continue
		}
		if !strings.Contains(err.Error(), ": "+reason+"; there are %t topic, ") {
			t.Errorf("%q: %v", format, err)
		}
		for _, f := range formFields {
			if !strings.Contains(err.Error(), "%"+string(f.letter)+" ") {
				t.Errorf("%q: %%%c is not listed in %v", format, f.letter, err)
			}
		}
	}
}

func TestPlainForm(t *testing.T) {
	keyed, keyless, tombstone := recordOf(t, 0, []byte("k"), []byte("v")), recordOf(t, 1, nil, []byte("v")), recordOf(t, 2, []byte("k"), nil)
	for _, tc := range []struct {
		f    plainForm
		want string
	}{
		{plainForm{delim: []byte("\n")}, "v\nv\n\n"},
		{plainForm{delim: []byte("\n"), keyDelim: []byte(":")}, "k:v\nv\nk:\n"},
		{plainForm{delim: []byte("--"), keyDelim: []byte("=>"), null: []byte("NULL")}, "k=>v--NULL=>v--k=>NULL--"},
		{plainForm{delim: []byte{0}, null: []byte{}}, "v\x00v\x00\x00"},
	} {
		var got []byte
		for _, r := range []*codec.Record{keyed, keyless, tombstone} {
			got = tc.f.append(got, 0, r)
		}
		if string(got) != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestJSONForm(t *testing.T) {
	f := newJSONForm("orders")
	for _, tc := range []struct {
		r    *codec.Record
		want string
	}{
		{
			recordOf(t, 5, []byte("k"), []byte("hä\n\"")),
			`{"topic":"orders","partition":2,"offset":5,"timestamp":1700000000123,"key":"k","value":"hä\n\"","headers":[]}`,
		},
		{
			recordOf(t, 5, nil, nil, "a", "1", "b", "null"),
			`{"topic":"orders","partition":2,"offset":5,"timestamp":1700000000123,"key":null,"value":null,` +
				`"headers":[{"key":"a","value":"1"},{"key":"b","value":null}]}`,
		},
		{
			recordOf(t, 5, []byte{}, []byte{0xff, 0xfe}, "\xff", "\x80"),
			`{"topic":"orders","partition":2,"offset":5,"timestamp":1700000000123,"key":"","value_base64":"//4=",` +
				`"headers":[{"key_base64":"/w==","value_base64":"gA=="}]}`,
		},
	} {
		got := string(f.append(nil, 2, tc.r))
		if d := cmp.Diff(tc.want+"\n", got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if !json.Valid([]byte(got)) {
			t.Errorf("%s is not JSON", got)
		}
	}
}

// FuzzJSONForm: whatever a record holds comes back from a JSON parser as it was, on one line.
func FuzzJSONForm(f *testing.F) {
	for _, s := range []string{"", "plain", "q\"\\/<>&\b\f\n\r\t\x00\x1f\x7f", "ä\u0085\u009f\u2028\u2029\ufffd😀", "\xff", "a\xc3", "\xed\xa0\x80"} {
		f.Add([]byte(s), []byte("h"+s))
	}
	f.Fuzz(func(t *testing.T, value, header []byte) {
		line := newJSONForm("t").append(nil, 0, recordOf(t, 1, value, value, string(header), "x"))
		if n := strings.Count(string(line), "\n"); n != 1 || !utf8.Valid(line) {
			t.Fatalf("%q", line)
		}
		var got struct {
			Key    *string `json:"key"`
			Key64  *string `json:"key_base64"`
			Value  *string `json:"value"`
			Bytes  *string `json:"value_base64"`
			Header []struct {
				Key   *string `json:"key"`
				Key64 *string `json:"key_base64"`
			} `json:"headers"`
		}
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		check := func(want []byte, text, b64 *string) {
			t.Helper()
			switch {
			case want == nil:
				if text != nil || b64 != nil {
					t.Errorf("null became %q", line)
				}
			case utf8.Valid(want):
				if text == nil || b64 != nil || *text != string(want) {
					t.Errorf("%q became %q", want, line)
				}
			default:
				if text != nil || b64 == nil || *b64 != base64.StdEncoding.EncodeToString(want) {
					t.Errorf("%q became %q", want, line)
				}
			}
		}
		check(value, got.Key, got.Key64)
		check(value, got.Value, got.Bytes)
		check(header, got.Header[0].Key, got.Header[0].Key64)
	})
}
