package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/internal/loadgen"
)

// workload says what one measurement sends.
type workload struct {
	Size       int    `json:"size"`    // payload bytes of a record
	Storage    string `json:"storage"` // as lightq-topic -s takes it
	Partitions int    `json:"partitions"`
	Producers  int    `json:"producers"` // processes, each with a topic of its own
	Consumers  int    `json:"consumers"` // processes for each topic, each of which receives everything
	Messages   int64  `json:"messages"`  // to each partition of each topic
	Rate       int64  `json:"rate"`      // messages/s of each producer, 0 for as fast as possible
}

// published is how many messages all producers send together.
func (w workload) published() int64 { return w.Messages * int64(w.Partitions) * int64(w.Producers) }

// programs says where the programs are and what else to tell them.
type programs struct {
	dir     string // holds all four
	scratch string // parent of data directories

	brokerArgs, producerArgs, consumerArgs []string // appended to their command lines
}

func (p programs) path(name string) string { return filepath.Join(p.dir, name) }

// runResult is one measurement of LightQ.
type runResult struct {
	Messages    int64   `json:"messages"` // published and confirmed, all producers
	Received    int64   `json:"received"` // all consumers
	Bytes       int64   `json:"bytes"`    // payload received, all consumers
	Seconds     float64 `json:"seconds"`  // from the first record received to the last
	MsgsPerSec  float64 `json:"msgs_per_sec"`
	BytesPerSec float64 `json:"bytes_per_sec"`
	MBPerSec    float64 `json:"mb_per_sec"`

	JournalBytes int64 `json:"journal_bytes,omitempty"` // of storages in files: the batches that all topics were given

	Latency loadgen.Latency `json:"latency_us"`        // of several consumers, the worst of each figure
	LateNS  int64           `json:"late_ns,omitempty"` // the most that a producer left a message behind its schedule

	Processes []processUsage `json:"processes"` // broker, producers, consumers
	Broker    roleFigures    `json:"broker"`
	Producer  roleFigures    `json:"producer"`
	Consumer  roleFigures    `json:"consumer"`
	Problems  []string       `json:"problems,omitempty"` // what was lost, repeated or out of order: the run does not count
	Verified  bool           `json:"verified"`           // whether records carried what it takes to see that

	producers []*loadgen.ProducerReport
	consumers []*loadgen.ConsumerReport
}

// roleFigures is what the processes of one role cost.
type roleFigures struct {
	CPUSecondsPerMillion float64 `json:"cpu_seconds_per_million"` // of all of them, for each million messages published
	PeakBytes            int64   `json:"peak_bytes"`              // of the largest
}

// measureLightQ runs the workload once with a fresh broker. When it returns, whatever happened, none of the processes is
// left and the broker's data is gone. A result with Problems comes with a nil error: everything ran, and the counts are wrong.
func measureLightQ(ctx context.Context, p programs, w workload) (res *runResult, err error) {
	g, broker, addr, end, err := p.startBroker(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = end(err) }()

	topics := make([]string, w.Producers)
	for i := range topics {
		topics[i] = "bench"
		if i > 0 {
			topics[i] += strconv.Itoa(i + 1)
		}
		create, err := g.start(command{
			name: programTopic, path: p.path(programTopic),
			args: []string{"-t", topics[i], "-n", strconv.Itoa(w.Partitions), "-b", addr, "-s", w.Storage},
		})
		if err != nil {
			return nil, err
		}
		if err := g.wait(ctx, create); err != nil {
			return nil, err
		}
	}

	var producers, consumers []*process
	load := []string{"-m", strconv.FormatInt(w.Messages, 10), "-b", addr, "--output", "json"}
	for _, topic := range topics {
		for range w.Consumers {
			c, err := g.start(command{
				name: programConsumer, path: p.path(programConsumer), ready: parseAttached,
				args: append(append([]string{"-t", topic}, load...), p.consumerArgs...),
			})
			if err != nil {
				return nil, err
			}
			consumers = append(consumers, c)
		}
	}
	for _, c := range consumers {
		if _, err := c.waitReady(ctx); err != nil {
			return nil, err
		}
	}
	for _, topic := range topics {
		args := append([]string{"-t", topic, "-s", strconv.Itoa(w.Size)}, load...)
		if w.Rate > 0 {
			args = append(args, "--rate", strconv.FormatInt(w.Rate, 10))
		}
		pr, err := g.start(command{
			name: programProducer, path: p.path(programProducer), args: append(args, p.producerArgs...),
		})
		if err != nil {
			return nil, err
		}
		producers = append(producers, pr)
	}

	waitErr := g.wait(ctx, append(append([]*process(nil), producers...), consumers...)...)
	if waitErr != nil && !isCheckFailure(waitErr) {
		return nil, waitErr
	}
	res = &runResult{}
	for _, pr := range producers {
		s, err := parseProducer(pr.stdout.text())
		if err != nil {
			return nil, errors.Join(waitErr, err)
		}
		res.producers = append(res.producers, s)
	}
	for _, c := range consumers {
		s, err := parseConsumer(c.stdout.text())
		if err != nil {
			return nil, errors.Join(waitErr, err)
		}
		res.consumers = append(res.consumers, s)
	}
	if inFiles(w.Storage) {
		if res.JournalBytes, err = journalBytes(ctx, p, g, addr, topics); err != nil {
			return nil, err
		}
	}
	if err := g.stop(broker); err != nil {
		return nil, err
	}
	res.check(w)
	if waitErr != nil {
		res.Problems = append(res.Problems, waitErr.Error())
	}
	if err := res.compute(w, broker, producers, consumers); err != nil {
		return nil, err
	}
	return res, nil
}

// journalBytes asks how many bytes of batches the topics were given.
func journalBytes(ctx context.Context, p programs, g *group, addr string, topics []string) (n int64, err error) {
	for _, topic := range topics {
		d, err := g.start(command{
			name: programTopic, path: p.path(programTopic), args: []string{"describe", "-t", topic, "-b", addr, "--output", "json"},
		})
		if err != nil {
			return 0, err
		}
		if err := g.wait(ctx, d); err != nil {
			return 0, err
		}
		var answer struct {
			Partitions []struct {
				BytesIn int64 `json:"bytes_in"`
			} `json:"partitions"`
		}
		if err := json.Unmarshal([]byte(d.stdout.text()), &answer); err != nil {
			return 0, fmt.Errorf("describe topic %s: %w", topic, err)
		}
		for _, part := range answer.Partitions {
			n += part.BytesIn
		}
	}
	return n, nil
}

// startBroker starts a broker with a data directory of its own. end, which is to be called with the error so far, ends what the group
// still runs, and removes the directory.
func (p programs) startBroker(ctx context.Context) (g *group, broker *process, addr string, end func(error) error, err error) {
	data, err := os.MkdirTemp(p.scratch, "data-")
	if err != nil {
		return nil, nil, "", nil, fmt.Errorf("make data directory: %w", err)
	}
	g = newGroup()
	end = func(err error) error {
		g.close()
		if rerr := os.RemoveAll(data); rerr != nil && err == nil {
			err = fmt.Errorf("remove data directory: %w", rerr)
		}
		return err
	}
	broker, err = g.start(command{
		name: programBroker, path: p.path(programBroker), ready: parseBrokerReady,
		args: append([]string{"-b", "0", "--data-dir", data, "--admin-listen", "off"}, p.brokerArgs...),
	})
	if err == nil {
		addr, err = broker.waitReady(ctx)
	}
	if err != nil {
		return nil, nil, "", nil, end(err)
	}
	return g, broker, addr, end, nil
}

// isCheckFailure tells a program that found its counts wrong, and printed them, from one that broke.
func isCheckFailure(err error) bool {
	var pe *processError
	return errors.As(err, &pe) && pe.code == int(cli.ExitCheckFailed)
}

// check compares every count with what the workload says and writes down what differs.
func (r *runResult) check(w workload) {
	problem := func(who string, partition int, what string, got, want int64) {
		if got != want {
			r.Problems = append(r.Problems, fmt.Sprintf("%s: partition %d: %s %d instead of %d", who, partition, what, got, want))
		}
	}
	payload := w.Messages * int64(w.Size)
	for _, s := range r.producers {
		who := fmt.Sprintf("producer of %s", s.Topic)
		if len(s.Partitions) != w.Partitions {
			r.Problems = append(r.Problems, fmt.Sprintf("%s: %d partitions instead of %d", who, len(s.Partitions), w.Partitions))
		}
		for _, p := range s.Partitions {
			problem(who, p.Partition, "sent", p.Sent, w.Messages)
			problem(who, p.Partition, "confirmed", p.Confirmed, w.Messages)
			problem(who, p.Partition, "failed", p.Failed, 0)
			problem(who, p.Partition, "bytes", p.Bytes, payload)
		}
		if s.Total.DroppedUnread != 0 {
			r.Problems = append(r.Problems, fmt.Sprintf("%s: %d dropped unread", who, s.Total.DroppedUnread))
		}
	}
	r.Verified = true
	for _, s := range r.consumers {
		who := fmt.Sprintf("consumer of %s", s.Topic)
		if len(s.Partitions) != w.Partitions {
			r.Problems = append(r.Problems, fmt.Sprintf("%s: %d partitions instead of %d", who, len(s.Partitions), w.Partitions))
		}
		verified := s.Verification == "on"
		r.Verified = r.Verified && verified
		for _, p := range s.Partitions {
			problem(who, p.Partition, "received", p.Received, w.Messages)
			problem(who, p.Partition, "bytes", p.Bytes, payload)
			if verified {
				problem(who, p.Partition, "lost", *p.Lost, 0)
				problem(who, p.Partition, "duplicate", *p.Duplicate, 0)
				problem(who, p.Partition, "out of order", *p.OutOfOrder, 0)
			}
			problem(who, p.Partition, "gap", p.Gap, 0)
		}
	}
}

// compute fills in the figures. The window is from the first record any consumer received to the last.
func (r *runResult) compute(w workload, broker *process, producers, consumers []*process) error {
	var first, last int64
	for _, s := range r.consumers {
		for _, p := range s.Partitions {
			r.Received += p.Received
			r.Bytes += p.Bytes
			if p.Received == 0 {
				continue
			}
			if first == 0 || p.FirstReceivedNS < first {
				first = p.FirstReceivedNS
			}
			last = max(last, p.LastReceivedNS)
		}
		l := s.Latency
		r.Latency.Count += l.Count
		r.Latency.P50 = max(r.Latency.P50, l.P50)
		r.Latency.P90 = max(r.Latency.P90, l.P90)
		r.Latency.P99 = max(r.Latency.P99, l.P99)
		r.Latency.P999 = max(r.Latency.P999, l.P999)
		r.Latency.Max = max(r.Latency.Max, l.Max)
	}
	for _, s := range r.producers {
		r.Messages += s.Total.Confirmed
		r.LateNS = max(r.LateNS, s.LateNS)
	}
	r.Seconds = float64(last-first) / 1e9
	if r.Seconds <= 0 && len(r.Problems) == 0 {
		return fmt.Errorf("measure throughput: %d messages of %d B are too few", w.published(), w.Size)
	}
	r.MsgsPerSec = ratio(float64(r.Received), r.Seconds)
	r.BytesPerSec = ratio(float64(r.Bytes), r.Seconds)
	r.MBPerSec = r.BytesPerSec / cli.MB

	r.Broker = r.account(w, broker)
	r.Producer = r.account(w, producers...)
	r.Consumer = r.account(w, consumers...)
	return nil
}

// account adds the processes of one role to the result and sums them up.
func (r *runResult) account(w workload, procs ...*process) roleFigures {
	var f roleFigures
	var cpu float64
	for _, p := range procs {
		u := p.usage()
		r.Processes = append(r.Processes, u)
		cpu += u.CPUSeconds
		f.PeakBytes = max(f.PeakBytes, u.PeakBytes)
	}
	f.CPUSecondsPerMillion = perMillion(cpu, w.published())
	return f
}
