package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Reach is what a record has.
type Reach struct {
	From     time.Time `json:"from,omitzero"` // the first tick
	To       time.Time `json:"to,omitzero"`   // the last one
	Ticks    int       `json:"ticks"`
	Figures  int64     `json:"figures"`
	Bytes    int64     `json:"bytes"`
	Segments int       `json:"segments"`
	// Whole is from when on every reading is there, where that is not From: before, one in a minute is.
	Whole   time.Time `json:"whole_from,omitzero"`
	Damaged int       `json:"damaged,omitempty"` // segments that cannot be read
	// Gaps are times of more than two minutes without a tick, the oldest first: the agent did not run, or could not
	// write.
	Gaps []Gap `json:"gaps,omitempty"`
	// What the recorder adds. Most is how many bytes there may be, and Age how old ticks may become.
	Off   bool          `json:"off,omitempty"`
	Most  int64         `json:"most_bytes,omitempty"`
	Age   time.Duration `json:"age_ns,omitempty"`
	Error string        `json:"error,omitempty"` // why nothing is written
	Since time.Time     `json:"since,omitzero"`  // when that began
	Lost  int64         `json:"lost,omitempty"`  // ticks that were not written since the agent started
}

// Gap is a time without a tick.
type Gap struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Lasts is how long so many bytes last at the rate of the record so far; 0 where that is not known yet.
func (r *Reach) Lasts() time.Duration {
	span := r.To.Sub(r.From)
	for _, g := range r.Gaps {
		span -= g.To.Sub(g.From)
	}
	if r.Bytes == 0 || r.Most == 0 || span < time.Hour {
		return 0
	}
	return min(time.Duration(float64(span)*float64(r.Most)/float64(r.Bytes)), r.Age)
}

// Survey looks at a record: the directory of a recorder, or a file that Write wrote.
func Survey(name string) (r Reach, err error) {
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		err = r.surveyDirectory(name)
	case err == nil:
		err = r.surveyFile(name)
	}
	if err != nil {
		err = fmt.Errorf("look at the record: %w", err)
	}
	return r, err
}

func (r *Reach) surveyDirectory(name string) error {
	dir, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	all, _, err := list(dir)
	thinned := false
	for _, e := range all {
		r.Bytes += e.size
		h, err := headOf(dir, e)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was taken away meanwhile
			r.Bytes -= e.size
		case err != nil:
			r.Damaged++
		case h.Ticks > 0:
			if thinned && !e.thinned() {
				r.Whole = h.From
			}
			thinned = e.thinned()
			r.add(h)
		}
	}
	return err
}

// headOf reads the head of a file of a record. An open segment has one with what it has until now.
func headOf(dir *os.Root, e entry) (h Head, err error) {
	if e.sealed() {
		f, err := dir.Open(e.name)
		if errors.Is(err, fs.ErrNotExist) && !e.thinned() {
			if text, _, wrong := load(dir, e); wrong == nil { // it was thinned meanwhile
				h, _, _, err = readHead(bytes.NewReader(text))
			}
			return h, err
		}
		if err != nil {
			return h, err
		}
		defer f.Close()
		h, _, _, err = readHead(f)
		if err == nil && h.Size != e.size || errors.Is(err, io.EOF) {
			err = ErrDamaged
		}
		return h, err
	}
	text, sealed, err := load(dir, e)
	if err != nil {
		return h, err
	}
	if sealed { // meanwhile
		h, _, _, err = readHead(bytes.NewReader(text))
		return h, err
	}
	var d decoder
	err = openTicks(text, func(tick []byte) error {
		ms, parts, err := d.next(tick)
		if err != nil {
			return err
		}
		at := time.UnixMilli(ms).UTC()
		if h.Ticks == 0 || at.Before(h.From) {
			h.From = at
		}
		if h.Ticks == 0 || at.After(h.To) {
			h.To = at
		}
		h.Ticks++
		for i := range parts {
			h.Values += len(parts[i].which)
		}
		return nil
	})
	return h, err
}

// surveyFile looks at segments that follow each other.
func (r *Reach) surveyFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for {
		h, _, _, err := readHead(f)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, ErrDamaged), err == nil && r.Bytes+h.Size > info.Size():
			r.Damaged++ // and where the next one begins is not known
			return nil
		case err != nil:
			return err
		}
		r.Bytes += h.Size
		r.add(h)
		if _, err := f.Seek(r.Bytes, io.SeekStart); err != nil {
			return err
		}
	}
}

// add adds a segment, which is not older than those before.
func (r *Reach) add(h Head) {
	if r.Segments > 0 && h.From.Sub(r.To) >= gapFrom {
		r.Gaps = append(r.Gaps, Gap{r.To, h.From})
	}
	if r.Segments == 0 || h.From.Before(r.From) {
		r.From = h.From
	}
	if h.To.After(r.To) {
		r.To = h.To
	}
	r.Segments++
	r.Ticks += h.Ticks
	r.Figures += int64(h.Values)
}

// Reach says what the recorder has written.
func (r *Recorder) Reach() (Reach, error) {
	at, err := Survey(r.o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // there is no tick yet
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := Bound{}
	if r.bound != nil {
		b = *r.bound
	}
	at.Off, at.Most, at.Age = b.Off, cmp.Or(b.Size, defaultSize), cmp.Or(b.Age, defaultAge)
	at.Lost = r.lost
	if r.err != nil {
		at.Error, at.Since = r.err.Error(), r.since
	}
	return at, err
}
