// Package record keeps what an agent samples: always, in so many bytes, so that the last days can be looked at after
// something went wrong.
//
// A record is a directory of files. The newest has the ticks as they came, each written by one write(2): who kills the
// agent loses one tick at most. After 15 minutes, or when it is large, it is sealed: written anew by column and
// compressed. When all are larger than they may be together, those that are older than two days are thinned to a
// reading a minute, and then the oldest goes. While the file system has little room the record does not grow: a new
// tick takes the room of an old file. TickOf makes a tick of a sample; the figures of a tick are those of the rows of
// observe.Table.
//
// Take and Close of a Recorder are for one goroutine, its other methods for any; these wait for no disk but to read it,
// in Reach. Open, Survey and what reads segments need no Recorder, and may run beside one.
package record

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"time"
)

// Bound is how much of the record is kept. The zero value is the default.
type Bound struct {
	Off  bool
	Size int64         // bytes; default 256 MiB
	Age  time.Duration // default 30 days
}

// The defaults, and what an open segment may have at most.
const (
	defaultSize = 256 << 20
	defaultAge  = 30 * 24 * time.Hour
	mostOpen    = 2 << 20
	sealAfter   = 15 * time.Minute
	retryAfter  = time.Minute
)

// leastFree is what the file system has to have left, unless a twentieth of it is less.
const leastFree = 64 << 20

// Options of a Recorder.
type Options struct {
	Dir string // made when the first tick is taken
	Log *slog.Logger
	// Space says how large the file system of a directory is, and how much of it is free, in bytes.
	Space func(dir string) (size, free uint64, err error)
	// write writes to the open segment; tests have it fail.
	write func(*os.File, []byte) (int, error)
}

// Recorder writes a record.
type Recorder struct {
	o Options

	mu    sync.Mutex // guards what follows, and is not held while the disk is written
	bound *Bound     // nil: it was not said
	err   error      // why nothing is written
	since time.Time
	lost  int64 // ticks that were not written

	// What follows is that of the goroutine that calls Take.
	now     Bound
	prune   bool     // now was said
	dir     *os.Root // nil before the first tick
	files   []entry  // but the open one, the oldest first
	spare   int64    // bytes that were freed for ticks while there was little room
	file    *os.File // the open segment; nil: the next tick begins one
	open    entry
	encoder encoder
	ticks   int
	last    int64 // when the last tick was, in milliseconds since 1970
	buffer  []byte
	retryAt time.Time
}

// New makes a recorder.
func New(o Options) *Recorder {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.write == nil {
		o.write = func(f *os.File, b []byte) (int, error) { return f.Write(b) }
	}
	return &Recorder{o: o}
}

// Bound says how much is kept from the next tick on. Before it is called nothing is taken away.
func (r *Recorder) Bound(b Bound) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bound = &b
}

// Lose counts a tick that could not be given to Take, because the disk has not taken those before.
func (r *Recorder) Lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost++
}

// Take writes a tick. What goes wrong is logged once, and kept for Reach; the record goes on when it can.
func (r *Recorder) Take(t Tick) {
	r.mu.Lock()
	r.now, r.prune = Bound{}, r.bound != nil
	if r.prune {
		r.now = *r.bound
	}
	r.mu.Unlock()
	switch {
	case len(t.Parts) == 0:
	case r.now.Off:
		r.result(t.At, r.empty())
	case t.At.Before(r.retryAt) && r.retryAt.Sub(t.At) <= retryAfter:
		r.Lose()
	default:
		r.result(t.At, r.write(t))
	}
}

// result takes in how it went.
func (r *Recorder) result(at time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.lost++
		r.retryAt = at.Add(retryAfter)
		if r.err == nil {
			r.since = at
			r.o.Log.Warn("the record is not written; trying again every minute", "err", err)
		}
	case r.err != nil:
		r.o.Log.Info("the record is written again", "samples that it lacks", r.lost)
	}
	r.err = err
}

// Close ends the record. It seals nothing: the open segment is read as it is, and sealed when a recorder begins again.
func (r *Recorder) Close() {
	r.end()
	if r.dir != nil {
		_ = r.dir.Close()
		r.dir = nil
	}
}

// empty takes everything away.
func (r *Recorder) empty() error {
	if _, err := os.Lstat(r.o.Dir); r.dir == nil && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := r.ready()
	if err == nil {
		r.end()
		r.keepTo(r.size())
	}
	return err
}

// write writes a tick.
func (r *Recorder) write(t Tick) error {
	if err := r.ready(); err != nil {
		return err
	}
	at := t.At.UnixMilli()
	if r.file != nil && (at-r.open.from >= sealAfter.Milliseconds() || r.open.size >= mostOpen || at < r.open.from ||
		at-r.last >= gapFrom.Milliseconds()) { // a gap is told between segments
		r.end()
		r.sealAll()
	}
	if r.file == nil {
		if err := r.begin(t.At); err != nil {
			_ = r.dir.Close() // somebody may have taken it away
			r.dir = nil
			return err
		}
	}
	n, err := r.append(t)
	if err != nil {
		// The encoder takes the tick for written: this segment ends before it, and its begin is no tick.
		r.end()
		return fmt.Errorf("write the record: %w", err)
	}
	r.open.size += int64(n)
	r.ticks++
	r.last = at
	return nil
}

// append appends a tick to the open segment.
func (r *Recorder) append(t Tick) (int, error) {
	r.buffer = r.buffer[:0]
	if r.ticks == 0 {
		r.buffer = append(r.buffer, openMagic...)
	}
	r.buffer = frameTick(r.buffer, func(b []byte) []byte { return r.encoder.append(b, t) })
	if len(r.buffer) > mostTick {
		return 0, fmt.Errorf("a sample of %d bytes is too large", len(r.buffer))
	}
	r.keepTo(r.size() + int64(len(r.buffer)))
	if err := r.room(int64(len(r.buffer))); err != nil {
		return 0, err
	}
	n, err := r.o.write(r.file, r.buffer)
	if err == nil && n < len(r.buffer) {
		err = io.ErrShortWrite
	}
	return n, err
}

// ready opens the directory, and seals what an earlier recorder has left.
func (r *Recorder) ready() error {
	if r.dir != nil {
		return nil
	}
	if err := os.MkdirAll(r.o.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the record: %w", err)
	}
	dir, err := os.OpenRoot(r.o.Dir)
	if err != nil {
		return fmt.Errorf("open the directory of the record: %w", err)
	}
	all, left, err := list(dir)
	if err != nil {
		_ = dir.Close()
		return fmt.Errorf("list the record: %w", err)
	}
	for _, name := range left {
		_ = dir.Remove(name)
	}
	r.dir, r.files = dir, all
	r.sealAll()
	return nil
}

// room sees to it that others still have room when so many bytes are written: where there is little, old files go for
// them.
func (r *Recorder) room(n int64) error {
	if r.o.Space == nil {
		return nil
	}
	size, free, err := r.o.Space(r.o.Dir)
	if err != nil {
		return err
	}
	least := min(leastFree, size/20)
	if free >= least+uint64(n) {
		r.spare = 0
		return nil
	}
	for r.spare < n && len(r.files) > 0 && r.prune {
		freed := r.files[0].size
		if err := r.removeOldest(); err != nil {
			return err
		}
		r.spare += freed
	}
	if r.spare < n {
		return fmt.Errorf("the file system of %q has %d MiB left, and the record leaves the last %d MiB to others",
			r.o.Dir, free>>20, least>>20)
	}
	r.spare -= n
	return nil
}

// begin begins an open segment.
func (r *Recorder) begin(at time.Time) error {
	from := at.UnixMilli()
	for { // the clock may have been set back
		f, err := r.dir.OpenFile(nameOf(from, openEnd), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
		if errors.Is(err, fs.ErrExist) || err == nil && r.exists(nameOf(from, sealedEnd), nameOf(from, thinEnd)) {
			if err == nil {
				_ = f.Close()
				_ = r.dir.Remove(nameOf(from, openEnd))
			}
			from++
			continue
		}
		if err != nil {
			return fmt.Errorf("begin a segment of the record: %w", err)
		}
		r.file, r.open, r.encoder, r.ticks = f, entry{name: nameOf(from, openEnd), from: from}, encoder{}, 0
		return nil
	}
}

func (r *Recorder) exists(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, err := r.dir.Lstat(name)
		return err == nil
	})
}

// end closes the open segment as it is.
func (r *Recorder) end() {
	if r.file == nil {
		return
	}
	_ = r.file.Close()
	r.file = nil
	if r.ticks == 0 {
		_ = r.dir.Remove(r.open.name)
		return
	}
	r.files = append(r.files, r.open)
}

// sealAll seals what is not sealed. What cannot be stays as it is.
func (r *Recorder) sealAll() {
	kept := r.files[:0]
	for _, e := range r.files {
		if !e.sealed() {
			sealed, err := r.seal(e)
			if errors.Is(err, fs.ErrNotExist) {
				continue // somebody has taken it away
			}
			if err != nil {
				r.o.Log.Warn("a segment of the record is not sealed; trying again later", "file", e.name, "err", err)
			} else if e = sealed; e.name == "" {
				continue
			}
		}
		kept = append(kept, e)
	}
	r.files = kept
}

// seal seals one file; the name is empty when it had no tick.
func (r *Recorder) seal(e entry) (entry, error) {
	text, err := r.dir.ReadFile(e.name)
	if err == nil {
		text, err = sealText(text)
	}
	if err != nil {
		return e, err
	}
	if len(text) == 0 {
		return entry{}, r.dir.Remove(e.name)
	}
	return r.replace(e, sealedEnd, text)
}

// replace puts a file that was made of another one in its place.
func (r *Recorder) replace(e entry, end string, text []byte) (entry, error) {
	to := entry{name: nameOf(e.from, end), from: e.from, size: int64(len(text))}
	temporary := nameOf(e.from, newEnd)
	err := r.put(temporary, text)
	if err == nil {
		err = r.dir.Rename(temporary, to.name)
	}
	if err != nil {
		_ = r.dir.Remove(temporary)
		return e, err
	}
	return to, r.dir.Remove(e.name)
}

// put writes a file and has it on disk.
func (r *Recorder) put(name string, text []byte) error {
	f, err := r.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// size is that of all files.
func (r *Recorder) size() (sum int64) {
	for _, e := range r.files {
		sum += e.size
	}
	if r.file != nil {
		sum += r.open.size
	}
	return sum
}

// keepTo thins old files, a few in one call, and then removes the oldest, while so many bytes are more than there may
// be, and removes those of which every tick is too old. Now is what the last two files say: a clock that is wrong for a
// moment takes nothing away.
func (r *Recorder) keepTo(size int64) {
	most := cmp.Or(r.now.Size, defaultSize)
	if r.now.Off {
		most = 0
	}
	oldest := int64(math.MinInt64)
	if n := len(r.files); n > 1 {
		oldest = min(r.files[n-1].from, r.files[n-2].from) - cmp.Or(r.now.Age, defaultAge).Milliseconds()
	}
	for thinned := 0; len(r.files) > 0 && r.prune; {
		if size <= most && r.files[0].from >= oldest {
			return
		}
		if r.files[0].from >= oldest && !r.now.Off {
			if thinned == mostThinned { // the next tick goes on
				return
			}
			if freed, done := r.thin(); done {
				thinned++
				size -= freed
				continue
			}
		}
		freed := r.files[0].size
		if r.removeOldest() != nil {
			return
		}
		size -= freed
	}
}

// removeOldest removes the oldest file but the open one.
func (r *Recorder) removeOldest() error {
	if err := r.dir.Remove(r.files[0].name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.files = r.files[1:]
	return nil
}
