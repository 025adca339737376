package verify

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// diskTarget is what an io limit of a group is on, with its limits.
type diskTarget struct {
	on    string // as the policy names it
	dir   string // a directory on it, "" when none is known
	paths []string
	parts map[policy.Key]policy.Settings // one for each device
}

// The keys of limits on reading and writing.
var diskKeys = []policy.Key{
	policy.KeyIOReadBandwidth, policy.KeyIOReadIOPS, policy.KeyIOWriteBandwidth, policy.KeyIOWriteIOPS,
}

// mostTargets is on how many targets limits of one group are measured.
const mostTargets = 8

// diskProbes measure limits on block devices.
type diskProbes struct{ *run }

// targets are those of a group's io limits.
func (p diskProbes) targets(g classify.Group) []*diskTarget {
	var all []*diskTarget
	for _, s := range g.Settings {
		if !slices.Contains(diskKeys, s.Key) || s.Dev == "" || len(p.snap.wanted(g.Path, s)) == 0 {
			continue
		}
		if _, none := s.Value.(policy.Unlimited); none {
			continue
		}
		on := cmp.Or(s.On, s.Dev)
		i := slices.IndexFunc(all, func(t *diskTarget) bool { return t.on == on })
		if i < 0 {
			if len(all) == mostTargets {
				p.leave(g.Path, s, "a probe measures at most %d devices of a group; name it in `on:`", mostTargets)
				continue
			}
			all = append(all, &diskTarget{on: on, parts: map[policy.Key]policy.Settings{}})
			i = len(all) - 1
		}
		all[i].parts[s.Key] = append(all[i].parts[s.Key], s)
	}
	for _, t := range all {
		p.findPlaces(t)
	}
	return all
}

// findPlaces finds a directory on the target, and the nodes of its devices.
func (p diskProbes) findPlaces(t *diskTarget) {
	var numbers []string
	for _, parts := range t.parts {
		for _, s := range parts {
			if !slices.Contains(numbers, s.Dev) {
				numbers = append(numbers, s.Dev)
			}
		}
	}
	slices.Sort(numbers)
	for _, number := range numbers {
		if d, ok := p.snap.Facts.Device(number); ok {
			t.paths = append(t.paths, "/dev/"+d.Name)
		}
	}
	if info, err := os.Stat(t.on); err == nil && filepath.IsAbs(t.on) && info.Mode()&os.ModeDevice == 0 {
		if t.dir = t.on; !info.IsDir() {
			t.dir = filepath.Dir(t.on)
		}
		return
	}
	if len(numbers) != 1 {
		return
	}
	for _, m := range p.snap.Facts.Mounts {
		d, known := p.snap.Facts.Device(m.Dev)
		if (m.Dev == numbers[0] || known && d.Disk == numbers[0]) && !slices.Contains(m.Options, "ro") {
			if at, ok := p.snap.Facts.Mounts.Of(m.Point); ok && at.Dev == m.Dev { // nothing is mounted over it
				t.dir = m.Point
				return
			}
		}
	}
}

// requests says which requests bring out a limit: large enough for a bandwidth to be reached before the operations are,
// small enough for a short time to hold many.
func (p diskProbes) requests(t *diskTarget, group string, key policy.Key) (d probe.Disk, wrong string) {
	asked := p.snap.asked(group, t.parts[key])
	other := math.Inf(1)
	beside := map[policy.Key]policy.Key{
		policy.KeyIOReadBandwidth: policy.KeyIOReadIOPS, policy.KeyIOReadIOPS: policy.KeyIOReadBandwidth,
		policy.KeyIOWriteBandwidth: policy.KeyIOWriteIOPS, policy.KeyIOWriteIOPS: policy.KeyIOWriteBandwidth,
	}[key]
	if len(t.parts[beside]) > 0 {
		other = p.snap.asked(group, t.parts[beside])
	}
	write := key == policy.KeyIOWriteBandwidth || key == policy.KeyIOWriteIOPS
	d = probe.Disk{Write: write, Warm: warmUp, Span: p.o.Span}
	bandwidth := asked
	if key == policy.KeyIOReadIOPS || key == policy.KeyIOWriteIOPS {
		d.Size, d.Depth, d.Random = 4096, 16, true
		bandwidth = asked * 4096
		if bandwidth > 0.95*other {
			wrong = "the limit on bandwidth is reached first, even with requests of 4 KiB"
		}
	} else {
		size := min(max(int(asked/40), 4096), 1<<20)
		if !math.IsInf(other, 1) {
			size = max(size, int(1.25*asked/other))
		}
		d.Size, d.Depth = (size+4095)/4096*4096, 4
		if d.Size > 1<<20 {
			wrong = "the limit on operations is reached first, even with requests of 1 MiB"
		}
	}
	if math.IsInf(asked, 1) || asked <= 0 {
		wrong = "no limit is known"
	}
	d.Most = int64(min(mostBytes, 2*bandwidth*(warmUp+p.o.Span).Seconds()+float64(4*d.Depth*d.Size)))
	d.File = max(min(mostFile, d.Most), int64(4*d.Size)) / int64(d.Size) * int64(d.Size)
	return d, wrong
}

// rates measure the limits on one target.
func (p diskProbes) rates(g classify.Group, t *diskTarget) []Measurement {
	var loads []Measurement
	for _, key := range diskKeys {
		parts := t.parts[key]
		if len(parts) == 0 {
			continue
		}
		d, wrong := p.requests(t, g.Path, key)
		if wrong == "" && d.Write && t.dir == "" {
			wrong = "nothing is mounted on it, and a probe writes nothing but files of its own"
		}
		if wrong != "" {
			p.leave(g.Path, parts[0], "%s", wrong)
			continue
		}
		l := p.rate(g, t, key, d, "direct")
		loads = append(loads, l)
		switch key {
		case policy.KeyIOReadBandwidth:
			d.Buffered = true
			loads = append(loads, p.rate(g, t, key, d, "buffered"))
			if one := p.oneOfSeveral(g, t, key, d); one != nil {
				loads = append(loads, *one)
			}
		case policy.KeyIOWriteBandwidth:
			loads = append(loads, p.buffered(g, t, parts))
		}
	}
	return loads
}

// rate measures a limit with requests of one kind.
func (p diskProbes) rate(g classify.Group, t *diskTarget, key policy.Key, d probe.Disk, how string) Measurement {
	parts := t.parts[key]
	s, asked := parts[0], p.snap.asked(g.Path, parts)
	l := Measurement{
		Key: key, On: p.snap.Limit(g.Path, s).On, Device: strings.Join(t.paths, " "), Where: p.where(),
		Takes: d.Warm + d.Span, Bytes: d.Most,
	}
	does := map[bool]string{true: "writes", false: "reads"}[d.Write]
	l.What = fmt.Sprintf("%s %s of %s, %s", how, does, p.what(t), requestsOf(d))
	l.run = func(ctx context.Context) []Result {
		r := p.result(g.Path, s, how)
		got, took, err := p.measure(ctx, g.Path, t, d)
		if err != nil {
			return []Result{r.failed(err)}
		}
		rate := probe.Rate{Asked: asked, InForce: p.snap.inForce(g.Path, parts), Measured: got.rate(key)}
		rate.Tolerance, rate.Grain = probe.Tolerance, 2/took.Seconds()
		if d.Size > 4096 || !d.Random {
			rate.Grain *= float64(d.Size)
		}
		if d.Buffered {
			rate.Tolerance = probe.ToleranceBuffered
		}
		return []Result{r.judged(rate, rateText(key, rate.Measured), took, p.why(g.Path, s))}
	}
	return l
}

// what names what is read or written.
func (p diskProbes) what(t *diskTarget) string {
	if t.dir != "" {
		return "a file without a name in " + t.dir
	}
	return strings.Join(t.paths, " and ")
}

// requestsOf describes requests for people.
func requestsOf(d probe.Disk) string {
	return fmt.Sprintf("%d requests of %s at a time", d.Depth, policy.Bytes(d.Size).Human())
}

// amounts are what loads read or wrote in a second.
type amounts struct{ bytes, ops float64 }

// rate is the one that a limit is on.
func (a amounts) rate(key policy.Key) float64 {
	if key == policy.KeyIOReadIOPS || key == policy.KeyIOWriteIOPS {
		return a.ops
	}
	return a.bytes
}

// rateText is a rate for people.
func rateText(key policy.Key, n float64) string {
	if key == policy.KeyIOReadIOPS || key == policy.KeyIOWriteIOPS {
		return fmt.Sprintf("%.0f/s", n)
	}
	return fmt.Sprintf("%.2f MB/s", n/1e6)
}

// place is where loads read and write.
func (p diskProbes) place(group string) (*place, error) {
	if p.o.Inside {
		return p.places.inside(group, "blkio")
	}
	return p.places.beside(group, recipe{controllers: []string{"blkio"}})
}

// measure has loads read or write: one in a directory on the target, else one on each of its devices, at the same time.
// They share one place.
func (p diskProbes) measure(ctx context.Context, group string, t *diskTarget, d probe.Disk) (
	sum amounts, took time.Duration, err error,
) {
	orders := []probe.Order{{Disk: &d}}
	switch {
	case t.dir != "" && d.Write:
		d.Dir = t.dir
	case t.dir != "":
		f, err := written(t.dir, d.File)
		if err != nil {
			return sum, 0, err
		}
		defer f.Close()
		d.Device = procfs.DescriptorPath(os.Getpid(), int(f.Fd()))
	default:
		orders = nil
		for _, path := range t.paths {
			one := d
			one.Device, one.Most = path, d.Most/int64(len(t.paths))+int64(d.Depth*d.Size)
			orders = append(orders, probe.Order{Disk: &one})
		}
	}
	pl, err := p.place(group)
	if err != nil {
		return sum, 0, err
	}
	defer pl.close()
	answers, err := p.loads.together(ctx, slices.Repeat([]*place{pl}, len(orders)), orders, d.Warm+d.Span)
	if err != nil {
		return sum, 0, err
	}
	for _, a := range answers {
		if a.Took <= 0 {
			return sum, 0, errors.New("nothing was read or written in time")
		}
		sum.bytes += float64(a.Bytes) / a.Took.Seconds()
		sum.ops += float64(a.Ops) / a.Took.Seconds()
		took = max(took, a.Took)
	}
	return sum, took, nil
}

// written makes a file without a name that is on the disk, for loads to read. It is written by this process, outside of
// every limit.
func written(dir string, size int64) (*os.File, error) {
	f, err := probe.Temporary(dir)
	if err != nil {
		return nil, err
	}
	buf := probe.Noise(1 << 20)
	for at := int64(0); at < size; at += int64(len(buf)) {
		if _, err := f.WriteAt(buf[:min(int64(len(buf)), size-at)], at); err != nil {
			f.Close()
			return nil, fmt.Errorf("write a file in %q: %w", dir, err)
		}
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return nil, fmt.Errorf("write a file in %q: %w", dir, err)
	}
	return f, nil
}

// oneOfSeveral measures whether one device alone gets all of a limit that several share by use.
func (p diskProbes) oneOfSeveral(g classify.Group, t *diskTarget, key policy.Key, d probe.Disk) *Measurement {
	parts := t.parts[key]
	s := parts[0]
	whole, ok := s.Whole.(policy.Rate)
	if !ok || s.Parts < 2 || s.Even() || len(t.paths) < 2 || t.dir != "" {
		return nil
	}
	alone := &diskTarget{on: t.on, paths: t.paths[:1], parts: map[policy.Key]policy.Settings{key: parts[:1]}}
	d.Buffered = false
	l := &Measurement{
		Key: key, On: p.snap.Limit(g.Path, s).On, Device: alone.paths[0], Where: p.where(),
		Takes: d.Warm + d.Span, Bytes: d.Most,
	}
	l.What = fmt.Sprintf("direct reads of %s alone, %s", alone.paths[0], requestsOf(d))
	l.run = func(ctx context.Context) []Result {
		r := p.result(g.Path, s, "direct, one device alone")
		got, took, err := p.measure(ctx, g.Path, alone, d)
		if err != nil {
			return []Result{r.failed(err)}
		}
		rate := probe.Rate{
			Asked: float64(whole), InForce: p.snap.inForce(g.Path, parts[:1]), Measured: got.bytes,
			Grain: 2 * float64(d.Size) / took.Seconds(),
		}
		why := fmt.Sprintf("the limit is halved: its %d devices have a part each, "+
			"and what does not use all of them never gets the whole", s.Parts)
		if s.Parts > 2 {
			why = strings.Replace(why, "halved", "divided", 1)
		}
		r = r.judged(rate, rateText(key, got.bytes), took, func() string {
			return why + "; no agent runs that would give it to where it is used"
		})
		if r.Verdict == probe.TooTight && p.o.Agent {
			r.Verdict = probe.NotReached
			r.Reason = why + " at first; the agent gives more to where it is used, every ten seconds at most"
		}
		return []Result{r}
	}
	return l
}

// buffered measures what is written through the page cache: a load in the group makes pages dirty, and this process has
// them written to the disk, as the kernel's own threads do.
func (p diskProbes) buffered(g classify.Group, t *diskTarget, parts policy.Settings) Measurement {
	s, asked := parts[0], p.snap.asked(g.Path, parts)
	bytes := int64(min(max(1.5*asked*p.o.Span.Seconds(), 4<<20), mostDirtyBytes))
	l := Measurement{
		Key: s.Key, On: p.snap.Limit(g.Path, s).On, Device: strings.Join(t.paths, " "), Where: p.where(), Bytes: bytes,
	}
	l.Takes = time.Duration(float64(bytes) / asked * float64(time.Second))
	l.What = fmt.Sprintf("%s written into the page cache for %s, and from there to the disk",
		policy.Bytes(bytes).Human(), p.what(t))
	l.run = func(ctx context.Context) []Result {
		r := p.result(g.Path, s, "buffered")
		var took time.Duration
		pl, err := p.place(g.Path)
		err = p.loads.with(ctx, pl, err, func(load Load) error {
			begin := time.Now()
			a, err := load.Do(ctx, probe.Order{Dirty: &probe.Dirty{Dir: t.dir, Bytes: bytes}}, 4*l.Takes)
			if err == nil {
				bytes = a.Bytes
				err = load.WriteBack(a.File)
			}
			took = time.Since(begin)
			return err
		})
		if err != nil {
			return []Result{r.failed(err)}
		}
		got := float64(bytes) / took.Seconds()
		rate := probe.Rate{Asked: asked, InForce: p.snap.inForce(g.Path, parts), Measured: got,
			Tolerance: probe.ToleranceBuffered}
		why := func() string { return p.snap.why(g.Path, s, true) }
		return []Result{r.judged(rate, rateText(s.Key, got), took, why)}
	}
	return l
}
