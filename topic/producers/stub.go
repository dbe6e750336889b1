package producers

import "github.com/lightio/lightq/codec"

type Verdict int

const (
	Append Verdict = iota
	Duplicate
	OutOfOrder
	Fenced
)

type State struct{ _ codec.Offset }

func New() *State { return &State{} }
func (s *State) Check(id int64, epoch int16, first, records int32) (Verdict, codec.Offset) {
	return Append, 0
}
func (s *State) Appended(id int64, epoch int16, first, records int32, base codec.Offset, nowMillis int64) {
}
func (s *State) Truncate(to codec.Offset)         {}
func (s *State) AppendSnapshot(dst []byte) []byte { return dst }
func (s *State) LoadSnapshot(b []byte) error      { return nil }
func (s *State) Replay(b codec.Batch, appendMillis int64) {
}
