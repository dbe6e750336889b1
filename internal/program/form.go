package program

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
)

// A form is how the reader writes records.
type form interface {
	// append appends a record of a partition to dst.
	append(dst []byte, partition int, r *codec.Record) []byte
}

// A plainForm is that of --print, which is also what lightq-producer reads with the same delimiters: the key and a separator
// if keys are wanted and the record has one, the value, and an end.
type plainForm struct {
	keyDelim []byte // empty: no keys
	delim    []byte // behind each record
	null     []byte // stands for a null key or value; nil: nothing does
}

func (f *plainForm) append(dst []byte, _ int, r *codec.Record) []byte {
	if len(f.keyDelim) > 0 && (r.Key != nil || f.null != nil) {
		dst = append(dst, orNull(r.Key, f.null)...)
		dst = append(dst, f.keyDelim...)
	}
	dst = append(dst, orNull(r.Value, f.null)...)
	return append(dst, f.delim...)
}

func orNull(b, null []byte) []byte {
	if b == nil {
		return null
	}
	return b
}

// An ownForm is that of --format: texts and fields in turn.
type ownForm struct {
	topic string
	null  []byte
	parts []formPart
}

// A formPart is a text or a field.
type formPart struct {
	text  []byte
	field byte // one of formFields; 0: a text
}

// formFields are what may stand behind a percent sign.
var formFields = []struct {
	letter byte
	means  string
}{
	{'t', "topic"},
	{'p', "partition"},
	{'o', "offset"},
	{'k', "key"},
	{'s', "value"},
	{'h', "headers as name=value,…"},
	{'T', "timestamp in ms since 1970"},
	{'K', "key size in bytes, -1 for null"},
	{'S', "value size in bytes, -1 for null"},
	{'%', "a percent sign"},
}

// formFieldLines is formFields as a list for help.
func formFieldLines() string {
	var b strings.Builder
	for _, f := range formFields {
		fmt.Fprintf(&b, "  %%%c  %s\n", f.letter, f.means)
	}
	return b.String()
}

// formFieldList is formFields on one line.
func formFieldList() string {
	var all []string
	for _, f := range formFields {
		all = append(all, "%"+string(f.letter)+" "+f.means)
	}
	return strings.Join(all, ", ")
}

// parseForm reads what --format was given.
func parseForm(s string) ([]formPart, error) {
	refuse := func(format string, args ...any) error {
		return cli.Usagef("--format %q: %s; there are %s, and \\n \\r \\t \\0 \\\\ \\xHH", s, fmt.Sprintf(format, args...), formFieldList())
	}
	var parts []formPart
	for rest := s; rest != ""; {
		text, behind, found := strings.Cut(rest, "%")
		if text != "" {
			b, err := cli.Unescape(text)
			if err != nil {
				return nil, refuse("%v", err)
			}
			parts = append(parts, formPart{text: b})
		}
		if !found {
			break
		}
		if behind == "" {
			return nil, refuse("nothing stands behind the last %%")
		}
		letter, size := utf8.DecodeRuneInString(behind)
		field := strings.IndexByte(formLetters(), behind[0])
		switch {
		case field < 0:
			return nil, refuse("%%%c is unknown", letter)
		case letter == '%':
			parts = append(parts, formPart{text: []byte("%")})
		default:
			parts = append(parts, formPart{field: behind[0]})
		}
		rest = behind[size:]
	}
	return parts, nil
}

func formLetters() string {
	var b []byte
	for _, f := range formFields {
		b = append(b, f.letter)
	}
	return string(b)
}

func (f *ownForm) append(dst []byte, partition int, r *codec.Record) []byte {
	for _, p := range f.parts {
		switch p.field {
		case 0:
			dst = append(dst, p.text...)
		case 't':
			dst = append(dst, f.topic...)
		case 'p':
			dst = strconv.AppendInt(dst, int64(partition), 10)
		case 'o':
			dst = strconv.AppendInt(dst, int64(r.Offset), 10)
		case 'k':
			dst = append(dst, orNull(r.Key, f.null)...)
		case 's':
			dst = append(dst, orNull(r.Value, f.null)...)
		case 'h':
			dst = f.appendHeaders(dst, r)
		case 'T':
			dst = strconv.AppendInt(dst, r.Timestamp, 10)
		case 'K':
			dst = strconv.AppendInt(dst, sizeOf(r.Key), 10)
		case 'S':
			dst = strconv.AppendInt(dst, sizeOf(r.Value), 10)
		}
	}
	return dst
}

// appendHeaders writes a header whose value is null as its name alone, or with what stands for null.
func (f *ownForm) appendHeaders(dst []byte, r *codec.Record) []byte {
	comma := false
	for key, value := range r.Headers {
		if comma {
			dst = append(dst, ',')
		}
		comma = true
		dst = append(dst, key...)
		if value != nil || f.null != nil {
			dst = append(dst, '=')
			dst = append(dst, orNull(value, f.null)...)
		}
	}
	return dst
}

// sizeOf is the size of a key or value, -1 for null.
func sizeOf(b []byte) int64 {
	if b == nil {
		return -1
	}
	return int64(len(b))
}

// A jsonForm is that of --json: an object on a line, with these fields in this order. A key, value or header that is not UTF-8
// stands under its name and _base64 instead.
//
//	{"topic":"orders","partition":0,"offset":5,"timestamp":1700000000000,"key":null,"value":"…","headers":[{"key":"a","value":"b"}]}
type jsonForm struct {
	head []byte // what stands in front of every partition number
}

func newJSONForm(topic string) *jsonForm {
	return &jsonForm{head: append(appendJSONString([]byte(`{"topic":`), []byte(topic)), `,"partition":`...)}
}

func (f *jsonForm) append(dst []byte, partition int, r *codec.Record) []byte {
	dst = append(dst, f.head...)
	dst = strconv.AppendInt(dst, int64(partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, int64(r.Offset), 10)
	dst = append(dst, `,"timestamp":`...)
	dst = strconv.AppendInt(dst, r.Timestamp, 10)
	dst = append(dst, ',')
	dst = appendJSONBytes(dst, "key", r.Key)
	dst = append(dst, ',')
	dst = appendJSONBytes(dst, "value", r.Value)
	dst = append(dst, `,"headers":[`...)
	comma := false
	for key, value := range r.Headers {
		if comma {
			dst = append(dst, ',')
		}
		comma = true
		dst = append(dst, '{')
		dst = appendJSONBytes(dst, "key", key)
		dst = append(dst, ',')
		dst = appendJSONBytes(dst, "value", value)
		dst = append(dst, '}')
	}
	return append(dst, "]}\n"...)
}

// appendJSONBytes appends a field of an object.
func appendJSONBytes(dst []byte, name string, b []byte) []byte {
	dst = append(dst, '"')
	dst = append(dst, name...)
	switch {
	case b == nil:
		return append(dst, `":null`...)
	case !utf8.Valid(b):
		dst = append(dst, `_base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, b)
		return append(dst, '"')
	}
	return appendJSONString(append(dst, `":`...), b)
}

const hexDigits = "0123456789abcdef"

// appendJSONString appends a string of JSON; b is UTF-8. Beside what JSON demands it escapes DEL and the C1 controls, for
// terminals, and the two line separators of Unicode, for JavaScript.
func appendJSONString(dst, b []byte) []byte {
	dst = slices.Grow(dst, len(b)+2)
	dst = append(dst, '"')
	done := 0
	for i := 0; i < len(b); {
		c := b[i]
		if c >= ' ' && c != '"' && c != '\\' && c < 0x7f {
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		if c >= utf8.RuneSelf && r > 0x9f && r != '\u2028' && r != '\u2029' {
			i += size
			continue
		}
		dst = append(dst, b[done:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
		}
		i += size
		done = i
	}
	dst = append(dst, b[done:]...)
	return append(dst, '"')
}
