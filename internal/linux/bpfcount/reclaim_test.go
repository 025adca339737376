package bpfcount

import (
	"testing"
	"testing/quick"
)

// The time in which threads are in reclaim for both reasons is divided by how many are; of both together it is the time
// in which any was. Summed over threads all count.
func TestBothReasonsShareTheTime(t *testing.T) {
	s := stalls{At: 100, In: [2][2]uint32{{3, 0}, {0, 1}}, Some: [2]uint64{10, 20}}
	s.advance(500)
	if s.Some != [2]uint64{10 + 300, 20 + 100} || s.Threads != [2]uint64{3 * 400, 400} || s.At != 500 {
		t.Errorf("%+v", s)
	}
	s.advance(400) // read before another CPU's
	if s.Some != [2]uint64{310, 120} || s.At != 500 {
		t.Errorf("the clock of another CPU was ahead: %+v", s)
	}
	s.In = [2][2]uint32{}
	s.advance(900)
	if s.Some != [2]uint64{310, 120} || s.Threads != [2]uint64{1200, 400} {
		t.Errorf("with nobody in reclaim: %+v", s)
	}
}

// A thread whose end is not seen counts for two epochs at most, and not for ever, and how often it is read meanwhile
// makes no difference.
func TestAThreadIsForgotten(t *testing.T) {
	const epoch = uint64(1) << epochShift
	begun := 7*epoch + epoch/4
	one := stalls{Epoch: 7, At: begun, In: [2][2]uint32{1: {1, 0}}}
	once := one
	once.advance(1000 * epoch)
	if want := 9*epoch - begun; once.Some != [2]uint64{want, 0} || once.Threads[whyLimit] != want ||
		once.In != [2][2]uint32{} {
		t.Errorf("it counts for %d, want %d: %+v", once.Some[whyLimit], want, once)
	}
	once.advance(2000 * epoch)
	if once.Some[whyLimit] != 9*epoch-begun {
		t.Errorf("it comes back: %+v", once)
	}
	if err := quick.Check(func(first, second uint64) bool {
		a, b := one, one
		first %= 4 * epoch
		second = first + second%(4*epoch)
		a.advance(begun + first)
		a.advance(begun + second)
		b.advance(begun + second)
		return a.Some == b.Some && a.Threads == b.Threads
	}, nil); err != nil {
		t.Error(err)
	}
}
