package load

import (
	"time"

	"bulkhead/internal/proof"
)

// series collects the latencies of a load that runs in this process, second by second. It is for one goroutine.
type series struct {
	o     Outcome
	all   tally
	began time.Time
	live  func(tps float64)
	// The second that is not over yet.
	count int
	sum   float64 // ms
}

func newSeries(began time.Time, live func(tps float64)) *series {
	return &series{all: tally{}, began: began, live: live}
}

// add takes a latency that ended now. A second in which none ended is in the series, too, with a rate of 0.
func (s *series) add(latency time.Duration) {
	ms := float64(latency) / float64(time.Millisecond)
	s.all.add(ms, 1)
	s.o.Transactions++
	for at := time.Since(s.began); at >= time.Duration(len(s.o.Seconds)+1)*time.Second; {
		s.end(float64(len(s.o.Seconds)+1), 1)
	}
	s.count, s.sum = s.count+1, s.sum+ms
}

// end closes the second that ended at a time, counted in seconds since the load began; span is its length in seconds.
func (s *series) end(at, span float64) {
	second := proof.Second{At: at, TPS: float64(s.count) / span, Latency: proof.Figure(s.sum / float64(s.count))}
	s.o.Seconds = append(s.o.Seconds, second)
	s.count, s.sum = 0, 0
	s.live(second.TPS)
}

// outcome ends the series. Each of its latencies stands for the time to the next, which is every.
func (s *series) outcome(every time.Duration) Outcome {
	// What came in a small part of a second says nothing of a second.
	if at := time.Since(s.began).Seconds(); at-float64(len(s.o.Seconds)) >= 0.5 || len(s.o.Seconds) == 0 {
		s.end(at, at-float64(len(s.o.Seconds))+every.Seconds())
	}
	s.o.Elapsed, s.o.Histogram = time.Since(s.began), s.all.buckets()
	return s.o
}
