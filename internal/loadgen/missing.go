package loadgen

// missing is the set of sequence numbers that were passed over, as ranges in order. It holds a bounded number of ranges:
// past that the oldest are counted as lost for good, and one of their messages that came after all would count as duplicate.
type missing struct {
	ranges []span
	gone   int64 // in ranges that were given up
}

// A span is the half-open range [from, next).
type span struct{ from, next uint64 }

const maxMissingRanges = 4096

// add notes a range above all others.
func (m *missing) add(from, next uint64) {
	if len(m.ranges) == maxMissingRanges {
		half := maxMissingRanges / 2
		for _, s := range m.ranges[:half] {
			m.gone += int64(s.next - s.from)
		}
		m.ranges = append(m.ranges[:0], m.ranges[half:]...)
	}
	m.ranges = append(m.ranges, span{from, next})
}

// remove takes seq out and reports whether it was in.
func (m *missing) remove(seq uint64) bool {
	for i := len(m.ranges) - 1; i >= 0; i-- { // late ones are mostly late by little
		s := &m.ranges[i]
		switch {
		case seq >= s.next:
			return false
		case seq < s.from:
			continue
		case seq == s.from && seq+1 == s.next:
			m.ranges = append(m.ranges[:i], m.ranges[i+1:]...)
		case seq == s.from:
			s.from++
		case seq+1 == s.next:
			s.next--
		default:
			tail := span{seq + 1, s.next}
			s.next = seq
			m.ranges = append(m.ranges, span{})
			copy(m.ranges[i+2:], m.ranges[i+1:])
			m.ranges[i+1] = tail
		}
		return true
	}
	return false
}

// count is how many are missing.
func (m *missing) count() int64 {
	n := m.gone
	for _, s := range m.ranges {
		n += int64(s.next - s.from)
	}
	return n
}
