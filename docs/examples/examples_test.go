// Package examples runs the programs of its folders, as a reader of the documentation would.
package examples

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/loop"
	"github.com/lightio/lightq/loop/brokertest"
)

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", bin, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

func TestHello(t *testing.T) {
	b := brokertest.Start(t, loop.Config{Bind: "127.0.0.1"})
	if got, want := run(t, "hello", b.URI()), "published at offset 0\nread hello\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestEmbedded(t *testing.T) {
	if got, want := run(t, "embedded"), "0 job 0\n1 job 1\n2 job 2\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// BenchmarkTransports moves records of 100 B from a producer to a consumer through a broker in the same process: over
// loopback TCP, over a unix socket, and without a socket.
func BenchmarkTransports(b *testing.B) {
	for _, kind := range []string{"tcp", "unix", "in-process"} {
		b.Run("transport="+kind, func(b *testing.B) {
			cfg := loop.Config{}
			switch kind {
			case "tcp":
				cfg.Bind = "127.0.0.1"
			case "unix":
				cfg.Bind = "unix://" + filepath.Join(b.TempDir(), "s")
			}
			broker := brokertest.Start(b, cfg)
			ctx := context.Background()
			c, err := client.Dial(ctx, broker.URI(), client.WithDialer(broker.Dial))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.CreateTopic(ctx, "bench", client.TopicSettings{}); err != nil {
				b.Fatal(err)
			}
			in, err := c.Consumer(ctx, "bench")
			if err != nil {
				b.Fatal(err)
			}
			p, err := c.Producer(ctx, "bench")
			if err != nil {
				b.Fatal(err)
			}
			total := b.N
			received := make(chan int, 1)
			go func() {
				n := 0
				for batch, err := range in.Batches(ctx) {
					if err != nil || n+batch.RecordCount() >= total {
						n += batch.RecordCount()
						break
					}
					n += batch.RecordCount()
				}
				received <- n
			}()
			value := make([]byte, 100)
			b.SetBytes(100)
			b.ResetTimer()
			for range total {
				if err := p.PublishValue(ctx, 0, value); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.Flush(ctx); err != nil {
				b.Fatal(err)
			}
			if n := <-received; n != total {
				b.Fatalf("received %d of %d", n, total)
			}
			b.StopTimer()
			_ = c.Close()
		})
	}
}
