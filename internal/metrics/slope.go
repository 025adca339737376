package metrics

import "time"

// Point is a sample of a single count that is read too often for whole samples of groups.
type Point struct {
	At    float64 // seconds
	Count float64
}

// Points are the samples of one count, the oldest first. They tell how fast it grows. A limit lets through much at a
// time, then nothing for as long as a slice of it lasts (100 ms in blk-throttle), so that the difference of two samples
// may be one such slice too much. The slope of the line that fits best to all of them (least squares) is not: the ends
// weigh little in it.
type Points []Point

// In is by how much the count grows in so long.
func (p Points) In(span time.Duration) int64 {
	n := float64(len(p))
	if n == 0 {
		return 0
	}
	if n < 8 { // over in no time
		first, last := p[0], p[len(p)-1]
		if last.At <= first.At {
			return int64(last.Count)
		}
		return int64((last.Count - first.Count) / (last.At - first.At) * span.Seconds())
	}
	var at, count float64
	for _, s := range p {
		at, count = at+s.At/n, count+s.Count/n
	}
	var above, below float64
	for _, s := range p {
		above += (s.At - at) * (s.Count - count)
		below += (s.At - at) * (s.At - at)
	}
	return int64(max(0, above/below*span.Seconds()))
}
