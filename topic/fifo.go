package topic

// A fifo is a queue in a ring of slots that grows as needed and shrinks when it is empty again. Its bound is that of what
// is put in: windows bound both uses in core.
type fifo[T any] struct {
	slots []T // a power of two
	head  int
	count int
}

const fifoKeepSlots = 256

func (q *fifo[T]) len() int { return q.count }

// front and back return the oldest and the newest of what is in the queue, which must not be empty. The pointers are valid
// until the next push or pop.
func (q *fifo[T]) front() *T { return &q.slots[q.head] }
func (q *fifo[T]) back() *T  { return &q.slots[(q.head+q.count-1)&(len(q.slots)-1)] }

func (q *fifo[T]) push(v T) {
	if q.count == len(q.slots) {
		slots := make([]T, max(16, 2*len(q.slots)))
		for i := range q.count {
			slots[i] = q.slots[(q.head+i)&(len(q.slots)-1)]
		}
		q.slots, q.head = slots, 0
	}
	q.slots[(q.head+q.count)&(len(q.slots)-1)] = v
	q.count++
}

func (q *fifo[T]) pop() T {
	var zero T
	v := q.slots[q.head]
	q.slots[q.head] = zero
	q.head = (q.head + 1) & (len(q.slots) - 1)
	q.count--
	if q.count == 0 && len(q.slots) > fifoKeepSlots {
		*q = fifo[T]{}
	}
	return v
}
