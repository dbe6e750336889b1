package program

import (
	"maps"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

func TestRates(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(after time.Duration, in, kept uint64) look {
		return look{at: start.Add(after), counts: []count{
			{Stat: codec.Stat{Name: "in", Value: in}, grows: true},
			{Stat: codec.Stat{Name: "kept", Value: kept}},
		}}
	}
	for _, tc := range []struct {
		name        string
		before, now look
		want        map[string]float64
	}{
		{"the first look has none", look{}, at(time.Second, 5, 5), nil},
		{"two seconds", at(0, 10, 4), at(2*time.Second, 15, 9), map[string]float64{"in": 2.5}},
		{"nothing came", at(0, 10, 4), at(time.Second, 10, 4), map[string]float64{"in": 0}},
		{"the count began anew", at(0, 10, 4), at(time.Second, 3, 9), map[string]float64{}},
		{"no time has passed", at(0, 10, 4), at(0, 11, 4), nil},
	} {
		if got := tc.now.rates(tc.before); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestStatsOf: the counts of a topic are the sums over its partitions.
func TestStatsOf(t *testing.T) {
	p := codec.PartitionInfo{
		Start: 3, High: 10, Next: 12, Bytes: 100, DroppedUnread: 1, Subscriptions: 2, Publishers: 3,
		RecordsIn: 12, BytesIn: 200, RecordsOut: 24, BytesOut: 400, QueueSize: 7,
	}
	got := statsOf("x", "orders", client.Description{
		Settings: client.TopicSettings{Storage: codec.StorageQueue}, Partitions: []codec.PartitionInfo{p, p},
	})
	want := topicStats{
		Program: "x", Topic: "orders", TopicType: "queue", QueueSize: 14, MessagesReceived: 24, MessagesSent: 48, PublishersCount: 6,
		SubscribersCount: 4, TotalBytesWritten: 400, TotalBytesRead: 800, Partitions: 2, RecordsKept: 14, BytesKept: 200, DroppedUnread: 2,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
