package record

import (
	"bytes"
	"fmt"
	"time"
)

// When there are more bytes than there may be, sealed segments that are older than thinFrom are thinned before anything
// is taken away: of each collector the last reading in every thinTo stays.
const (
	thinFrom = 48 * time.Hour
	thinTo   = time.Minute
	// mostThinned is how many segments are thinned before the next tick is written: a record of weeks, whose bound was
	// lowered, would keep it waiting for minutes, and those that come meanwhile would be lost. For so long it has more
	// bytes than it may.
	mostThinned = 4
)

// thin thins the oldest segment that is old enough, and says how many bytes that has freed; false when there is none.
func (r *Recorder) thin() (freed int64, done bool) {
	n := len(r.files)
	if n < 2 {
		return 0, false
	}
	before := min(r.files[n-1].from, r.files[n-2].from) - thinFrom.Milliseconds()
	for i := range r.files[:n-2] {
		e := &r.files[i]
		if e.from >= before {
			return 0, false
		}
		if !e.sealed() || e.thinned() || e.whole {
			continue
		}
		text, err := r.thinned(*e)
		if err != nil {
			r.o.Log.Warn("a segment of the record stays as it is", "file", e.name, "err", err)
			e.whole = true
			continue
		}
		thinned, err := r.replace(*e, thinEnd, text)
		if err != nil { // there is no room, say: no other one can be written now
			r.o.Log.Warn("a segment of the record is not thinned; trying again later", "file", e.name, "err", err)
			return 0, false
		}
		freed = e.size - thinned.size
		*e = thinned
		return freed, true
	}
	return 0, false
}

// thinned makes what is to stay of one file.
func (r *Recorder) thinned(e entry) ([]byte, error) {
	text, err := r.dir.ReadFile(e.name)
	if err == nil {
		text, err = thinText(text)
	}
	if err == nil && int64(len(text)) >= e.size {
		err = fmt.Errorf("thinned it would have %d bytes of %d", len(text), e.size)
	}
	return text, err
}

// thinText thins a sealed segment.
func thinText(text []byte) ([]byte, error) {
	var c converter
	var e encoder
	err := Segments(bytes.NewReader(text), time.Time{}, endOfTime, func(s *Segment) error {
		number := func(i int) int64 { return s.times[i] / thinTo.Milliseconds() }
		for i := 0; i < s.Ticks; {
			end := i + 1
			for end < s.Ticks && number(end) == number(i) {
				end++
			}
			if err := c.add(e.append(nil, s.Last(i, end))); err != nil {
				return err
			}
			i = end
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c.seal()
}

// endOfTime is later than every tick.
var endOfTime = time.UnixMilli(1 << 50)
