package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// A message is a 32-byte head, filling, and the CRC-32C of all of that. The head tells the run, the partition for which it was
// published, its producer, and its number there, from 1.
const (
	headBytes = 32
	leastSize = headBytes + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendMessage appends the message of size bytes, at least leastSize.
func appendMessage(dst []byte, run uint64, part, producer int, number uint32, size int) []byte {
	begin := len(dst)
	dst = binary.BigEndian.AppendUint64(dst, run)
	dst = binary.BigEndian.AppendUint64(dst, uint64(part))
	dst = binary.BigEndian.AppendUint64(dst, uint64(producer))
	dst = binary.BigEndian.AppendUint64(dst, uint64(number))
	for i := len(dst) - begin; i < size-4; i++ {
		dst = append(dst, byte(i)^byte(number))
	}
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[begin:], castagnoli))
}

// parseMessage is the inverse; it fails for what is no whole message of this run and partition.
func parseMessage(b []byte, run uint64, part int) (producer int, number uint32, err error) {
	if len(b) < leastSize {
		return 0, 0, fmt.Errorf("%d bytes", len(b))
	}
	body := b[:len(b)-4]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(body):]) {
		return 0, 0, errors.New("its checksum is wrong")
	}
	if got := binary.BigEndian.Uint64(body); got != run {
		return 0, 0, fmt.Errorf("of another run, %x", got)
	}
	if got := binary.BigEndian.Uint64(body[8:]); got != uint64(part) {
		return 0, 0, fmt.Errorf("of another partition, %d", got)
	}
	return int(binary.BigEndian.Uint64(body[16:])), uint32(binary.BigEndian.Uint64(body[24:])), nil
}

// A ledger knows what was sent, what became of it, and what is wrong. All goroutines share it.
type ledger struct {
	run   uint64
	parts []*part

	mu    sync.Mutex
	first []string // findings, at most maxFindings
	count int
}

const maxFindings = 50

// newLedger keeps the partitions of these topics, of so many producers each.
func newLedger(run uint64, topics []topicPlan, producers int) *ledger {
	l := &ledger{run: run}
	for t := range topics {
		for p := range int(topics[t].settings.Partitions) {
			l.parts = append(l.parts, &part{
				ledger: l, index: len(l.parts), topic: topics[t].name, partition: p, senders: make([]sender, producers),
				seen: map[codec.Offset]place{},
			})
		}
	}
	return l
}

// of returns the partitions of a topic.
func (l *ledger) of(topic string) (list []*part) {
	for _, p := range l.parts {
		if p.topic == topic {
			list = append(list, p)
		}
	}
	return list
}

func (l *ledger) finding(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; len(l.first) < maxFindings {
		l.first = append(l.first, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) findings() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.first)
}

func (l *ledger) faults() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *ledger) summary() string {
	var sent, confirmed, refused, looked, gaps int
	for _, p := range l.parts {
		p.mu.Lock()
		for i := range p.senders {
			sent += len(p.senders[i].fates)
			for _, f := range p.senders[i].fates {
				switch f.state {
				case confirmedState:
					confirmed++
				case refusedState:
					refused++
				}
			}
		}
		looked, gaps = looked+p.looked, gaps+p.gaps
		p.mu.Unlock()
	}
	return fmt.Sprintf("%d messages sent, %d confirmed, %d refused; %d records read back, %d gaps told", sent, confirmed, refused, looked, gaps)
}

// A part is one partition.
type part struct {
	ledger    *ledger
	index     int // in the ledger
	topic     string
	partition int

	mu      sync.Mutex
	senders []sender
	seen    map[codec.Offset]place // what somebody has read; sparse, for offsets jump where a topic does not sync always
	end     codec.Offset
	live    *pass // of the consumer that is there all the time; nil: it has not begun
	looked  int
	gaps    int
}

// A sender is what one producer has published to a partition: message number n is at n-1.
type sender struct{ fates []fate }

// A fate is what became of a message.
type fate struct {
	state  fateState
	offset codec.Offset // where it was confirmed, or seen before; -1: neither
}

type fateState uint8

const (
	openState fateState = iota
	confirmedState
	refusedState
)

// A place holds a message; number 0: nobody has read it.
type place struct {
	producer uint32
	number   uint32
}

func (p *part) fault(format string, args ...any) {
	p.ledger.finding("%s partition %d: %s", p.topic, p.partition, fmt.Sprintf(format, args...))
}

// send returns the number of the next message of a producer.
func (p *part) send(producer int) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.senders[producer]
	s.fates = append(s.fates, fate{offset: -1})
	return uint32(len(s.fates))
}

// unsend takes back the last message of a producer, which was not published after all.
func (p *part) unsend(producer int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.senders[producer]
	s.fates = s.fates[:len(s.fates)-1]
}

// outcome is what the producer was told about a message.
func (p *part) outcome(producer int, number uint32, r client.Receipt, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &p.senders[producer].fates[number-1]
	switch {
	case f.state != openState:
		p.fault("two outcomes of message %d of producer %d", number, producer)
	case err != nil:
		f.state = refusedState
		if f.offset >= 0 && !unknown(err) {
			p.fault("message %d of producer %d was seen at offset %d, and then refused: %v", number, producer, f.offset, err)
		}
	default:
		f.state = confirmedState
		if f.offset >= 0 && f.offset != r.Offset {
			p.fault("message %d of producer %d was seen at offset %d, and then confirmed at %d", number, producer, f.offset, r.Offset)
		}
		f.offset = r.Offset
		p.end = max(p.end, r.Offset+1)
	}
}

// unknown reports whether an error leaves open what became of a message.
func unknown(err error) bool {
	var lost *client.ConnError
	return errors.As(err, &lost) || errors.Is(err, codec.CodeOutcomeUnknown)
}

// confirmedEnd is the offset behind the last confirmed message.
func (p *part) confirmedEnd() codec.Offset {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end
}

// standing is where the consumer that is there all the time stands.
func (p *part) standing() codec.Offset {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		return 0
	}
	return p.live.next
}

// open counts the messages that no outcome is known of.
func (p *part) open() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.senders {
		for _, f := range p.senders[i].fates {
			if f.state == openState {
				n++
			}
		}
	}
	return n
}

// A pass is one way through a partition, by one consumer.
type pass struct {
	*part
	who  string
	next codec.Offset
	last []uint32 // by producer: the number seen last in this pass
}

func (p *part) pass(who string, from codec.Offset) *pass {
	return &pass{part: p, who: who, next: from, last: make([]uint32, len(p.senders))}
}

// gap takes note of offsets that will never come.
func (v *pass) gap(g codec.Gap) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gaps++
	if g.From > v.next || g.Next <= v.next {
		v.fault("%s at offset %d is told of a gap from %d to %d", v.who, v.next, g.From, g.Next)
	}
	v.lostLocked(max(g.From, v.next), g.Next)
	v.next = max(v.next, g.Next)
}

// lostLocked reports what was confirmed or seen at offsets that hold nothing.
func (v *pass) lostLocked(from, next codec.Offset) {
	for i := range v.senders {
		for n, f := range v.senders[i].fates {
			if f.state == confirmedState && f.offset >= from && f.offset < next {
				v.fault("lost: message %d of producer %d, confirmed at offset %d: a gap from %d to %d", n+1, i, f.offset, from, next)
			}
		}
	}
	for o := range v.seen {
		if o >= from && o < next {
			v.fault("lost: offset %d was seen before: a gap from %d to %d", o, from, next)
		}
	}
}

// record looks at one record.
func (v *pass) record(r *client.Record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.looked++
	if r.Offset != v.next {
		v.fault("%s expects offset %d and gets %d", v.who, v.next, r.Offset)
		if r.Offset > v.next {
			v.lostLocked(v.next, r.Offset)
		}
	}
	v.next = r.Offset + 1
	producer, number, err := parseMessage(r.Value, v.ledger.run, v.index)
	if err != nil {
		v.fault("offset %d holds what nobody published: %v", r.Offset, err)
		return
	}
	if producer >= len(v.senders) || number == 0 || int(number) > len(v.senders[producer].fates) {
		v.fault("offset %d holds message %d of producer %d, which was not published", r.Offset, number, producer)
		return
	}
	if number <= v.last[producer] {
		v.fault("offset %d holds message %d of producer %d, behind message %d", r.Offset, number, producer, v.last[producer])
	}
	v.last[producer] = number
	here := place{producer: uint32(producer), number: number}
	switch was := v.seen[r.Offset]; {
	case was.number == 0:
		v.seen[r.Offset] = here
	case was != here:
		v.fault("offset %d held message %d of producer %d, and now message %d of producer %d", r.Offset, was.number, was.producer, number, producer)
	}
	f := &v.senders[producer].fates[number-1]
	switch {
	case f.offset < 0:
		f.offset = r.Offset
	case f.offset != r.Offset:
		v.fault("message %d of producer %d is at offset %d and at %d", number, producer, f.offset, r.Offset)
	}
}

// complete is called behind a pass from the first offset when all outcomes are known: what was confirmed has been seen.
func (p *part) complete() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.senders {
		for n, f := range p.senders[i].fates {
			switch {
			case f.state == openState:
				p.fault("no outcome of message %d of producer %d", n+1, i)
			case f.state == confirmedState && p.seen[f.offset] != place{producer: uint32(i), number: uint32(n + 1)}:
				p.fault("lost: message %d of producer %d, confirmed at offset %d", n+1, i, f.offset)
			}
		}
	}
}
