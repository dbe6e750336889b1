// Package loop is the broker's network side: it accepts connections, runs their sessions on event loops, hands the
// batches they publish to package topic and delivers batches to consumers.
//
//	accept ─► transport ─► session: hello → ready → draining
//	             │ Peek, ReadInto      │ publish ─► topic.Partition ─► (inline, or its writer goroutine)
//	             │                     │                                │ confirms, "high was raised"
//	             └─ Writev ◄─ outbox ◄─┴── loop inbox ◄── Ring ─────────┘
//
// A session and everything that hangs on it (outbox, handles, subscriptions) belongs to its loop and is touched on that
// loop only; other goroutines reach it through the loop's inbox and Ring. Bytes of a publish frame are copied once, into
// slabs; deliver frames leave as the same bytes by writev. Nothing is ever queued inside gnet.
//
// What this package does not do: it opens no file but by telling package topic the data directory, holds no state of a topic, and
// never blocks a loop: what waits for the disk runs on the workers of offload.go.
package loop
