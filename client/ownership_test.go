package client

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/lightio/lightq/codec"
)

// What is published belongs to the caller again when the method returns: everything is overwritten at once, while batches
// wait, are sent, compressed or kept to be sent again.
func TestPublishCopies(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts []ProducerOption
		cut  bool
	}{
		{"plain", nil, false},
		{"compressed", []ProducerOption{Compress(codec.CompressionLZ4)}, false},
		{"idempotent", []ProducerOption{Idempotent()}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, f *fakeBroker) {
				c := f.client(reconnecting(1, 1))
				defer f.stop(c)
				if tt.cut {
					// After some frames a connection carries nothing any more, until the silence is noticed or it is cut.
					var mu sync.Mutex
					frames := map[*fakeConn]int{}
					f.setOn(func(c *fakeConn, h codec.Header, _, _ []byte) bool {
						mu.Lock()
						defer mu.Unlock()
						frames[c]++
						return h.Type == codec.TypePublish && frames[c] > 20
					})
				}
				p := newProducer(t, c, tt.opts...)
				const each, publishers = 200, 3
				var wg sync.WaitGroup
				for g := range publishers {
					wg.Go(func() {
						key, value, inHeader := make([]byte, 8), make([]byte, 40), make([]byte, 8)
						headers := make([]codec.RecordHeader, 2)
						for i := range each {
							mark := fmt.Appendf(nil, "%02d/%05d", g, i)
							copy(key, mark)
							copy(value, bytes.Repeat(mark, 5))
							copy(inHeader, mark)
							headers[0] = codec.RecordHeader{Key: "h", Value: inHeader}
							headers[1] = codec.RecordHeader{Key: string(mark)}
							m := Message{Key: key, Value: value, Headers: headers}
							var err error
							switch i % 3 {
							case 0:
								err = p.PublishAsync(t.Context(), m, nil)
							case 1:
								_, err = p.Publish(t.Context(), m)
							case 2:
								err = p.PublishValue(t.Context(), 0, value)
							}
							if err != nil {
								t.Error(err)
							}
							for _, b := range [][]byte{key, value, inHeader} {
								for j := range b {
									b[j] = '!'
								}
							}
							clear(headers)
							if tt.cut && g == 0 && i%50 == 49 {
								f.cut()
							}
						}
					})
				}
				wg.Wait()
				if err := p.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				n := 0
				next := make([]int, publishers)
				for _, b := range f.logs[0] {
					rs, err := Batch{Batch: b}.Open()
					if err != nil {
						t.Fatal(err)
					}
					for rs.Next() {
						r := &rs.Record
						var g, i int
						if _, err := fmt.Sscanf(string(r.Value), "%02d/%05d", &g, &i); err != nil || g >= publishers || i != next[g] {
							t.Fatalf("record %d is %q: %v", n, r.Value, err)
						}
						next[g]++
						mark := fmt.Sprintf("%02d/%05d", g, i)
						if want := bytes.Repeat([]byte(mark), 5); !bytes.Equal(r.Value, want) {
							t.Fatalf("value %q, want %q", r.Value, want)
						}
						if i%3 < 2 {
							got := ""
							r.Headers(func(k, v []byte) bool { got += fmt.Sprintf("%s=%s ", k, v); return true })
							if string(r.Key) != mark || got != "h="+mark+" "+mark+"= " {
								t.Fatalf("key %q, headers %q of message %s", r.Key, got, mark)
							}
						}
						n++
					}
				}
				if n != each*publishers {
					t.Errorf("%d records are stored, want %d", n, each*publishers)
				}
			})
		})
	}
}

// A record's slices stay as they are until the next iteration, whatever arrives meanwhile, and also when the loop is left and
// the connection is lost.
func TestViewsStayUntilTheNextIteration(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		bubble(t, 1, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(1, 1))
			defer f.stop(c)
			var opts []ProducerOption
			if compressed {
				opts = append(opts, Compress(codec.CompressionSnappy))
			}
			p, co := newProducer(t, c, opts...), newConsumer(t, c)
			const records = 400
			publish := func(i int) {
				m := Message{
					Key: fmt.Appendf(nil, "k%05d", i), Value: bytes.Repeat(fmt.Appendf(nil, "v%05d", i), 20),
					Headers: []codec.RecordHeader{{Key: "h", Value: fmt.Appendf(nil, "h%05d", i)}},
				}
				if _, err := p.Publish(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
			check := func(r *Record, i int) {
				t.Helper()
				header := ""
				r.Headers(func(_, v []byte) bool { header = string(v); return true })
				if string(r.Key) != fmt.Sprintf("k%05d", i) || header != fmt.Sprintf("h%05d", i) ||
					!bytes.Equal(r.Value, bytes.Repeat(fmt.Appendf(nil, "v%05d", i), 20)) {
					t.Fatalf("record %d: key %q header %q value %q", i, r.Key, header, r.Value)
				}
			}
			publish(0)
			i := 0
			for i < records {
				var kept Record
				for r, err := range co.Records(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					check(&r, i)
					publish(i + 1) // arrives while the record is in use
					check(&r, i)
					kept = r
					if i++; i%7 == 0 || i == records {
						break
					}
					for j := range r.Value {
						r.Value[j] = '!'
					}
				}
				if i%70 == 0 {
					f.cut()
					synctest.Wait()
				}
				check(&kept, i-1)
			}
		})
	}
}
