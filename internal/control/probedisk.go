package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
)

// diskTarget is what an io limit of a group is on, with its limits.
type diskTarget struct {
	on    string // as the policy names it
	dir   string // a directory on it, "" when none is known
	paths []string
	parts map[policy.Key]policy.Settings // one for each device
}

// The keys of limits on reading and writing.
var diskKeys = []policy.Key{policy.KeyIOReadBandwidth, policy.KeyIOReadIOPS, policy.KeyIOWriteBandwidth, policy.KeyIOWriteIOPS}

// mostTargets is on how many targets limits of one group are measured.
const mostTargets = 8

// targets are those of a group's io limits.
func (p *prober) targets(g classify.Group) []*diskTarget {
	var all []*diskTarget
	for _, s := range g.Settings {
		if !slices.Contains(diskKeys, s.Key) || s.Dev == "" || len(wantedFor(p.v, g.Path, s)) == 0 {
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
func (p *prober) findPlaces(t *diskTarget) {
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
		if d, ok := p.v.Facts.Device(number); ok {
			t.paths = append(t.paths, "/dev/"+strings.ReplaceAll(d.Name, "!", "/"))
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
	for _, m := range p.v.Facts.Mounts {
		d, known := p.v.Facts.Device(m.Dev)
		if (m.Dev == numbers[0] || known && d.Disk == numbers[0]) && !slices.Contains(m.Options, "ro") {
			if at, ok := p.v.Facts.Mounts.Of(m.Point); ok && at.Dev == m.Dev { // nothing is mounted over it
				t.dir = m.Point
				return
			}
		}
	}
}

// requests says which requests bring out a limit: large enough for a bandwidth to be reached before the operations are, small
// enough for a short time to hold many.
func (p *prober) requests(t *diskTarget, group string, key policy.Key) (d probe.Disk, asked float64, wrong string) {
	asked = p.asked(group, t.parts[key])
	other := math.Inf(1)
	beside := map[policy.Key]policy.Key{
		policy.KeyIOReadBandwidth: policy.KeyIOReadIOPS, policy.KeyIOReadIOPS: policy.KeyIOReadBandwidth,
		policy.KeyIOWriteBandwidth: policy.KeyIOWriteIOPS, policy.KeyIOWriteIOPS: policy.KeyIOWriteBandwidth,
	}[key]
	if len(t.parts[beside]) > 0 {
		other = p.asked(group, t.parts[beside])
	}
	d = probe.Disk{Write: key == policy.KeyIOWriteBandwidth || key == policy.KeyIOWriteIOPS, Warm: warmUp, Span: p.o.Span}
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
	d.Most = int64(min(mostProbeBytes, 2*bandwidth*(warmUp+p.o.Span).Seconds()+float64(4*d.Depth*d.Size)))
	d.File = max(min(mostProbeFile, d.Most), int64(4*d.Size)) / int64(d.Size) * int64(d.Size)
	return d, asked, wrong
}

// diskLoads measure the limits on one target.
func (p *prober) diskLoads(g classify.Group, t *diskTarget) []ProbeLoad {
	var loads []ProbeLoad
	for _, key := range diskKeys {
		parts := t.parts[key]
		if len(parts) == 0 {
			continue
		}
		d, asked, wrong := p.requests(t, g.Path, key)
		if wrong == "" && d.Write && t.dir == "" {
			wrong = "nothing is mounted on it, and a probe writes nothing but files of its own"
		}
		if wrong != "" {
			p.leave(g.Path, parts[0], "%s", wrong)
			continue
		}
		l := p.diskLoad(g, t, parts, d, asked, "direct")
		loads = append(loads, l)
		switch key {
		case policy.KeyIOReadBandwidth:
			d.Buffered = true
			loads = append(loads, p.diskLoad(g, t, parts, d, asked, "buffered"))
			if one := p.oneOfSeveral(g, t, parts, d); one != nil {
				loads = append(loads, *one)
			}
		case policy.KeyIOWriteBandwidth:
			loads = append(loads, p.dirtyLoad(g, t, parts, asked))
		}
	}
	return loads
}

func (p *prober) diskLoad(g classify.Group, t *diskTarget, parts policy.Settings, d probe.Disk, asked float64, how string) ProbeLoad {
	s := parts[0]
	l := ProbeLoad{Key: s.Key, On: limitOf(p.v, g.Path, s).On, Device: strings.Join(t.paths, " "), Where: p.where(), Takes: d.Warm + d.Span, Bytes: d.Most}
	l.What = fmt.Sprintf("%s %s of %s, %s", how, map[bool]string{true: "writes", false: "reads"}[d.Write], p.what(t), requestsOf(d))
	l.run = func(ctx context.Context) []Probed {
		r := p.result(g.Path, s, how)
		got, took, err := p.disk(ctx, g.Path, t, d)
		if err != nil {
			return []Probed{r.failed(err)}
		}
		rate := probe.Rate{Asked: asked, InForce: p.inForce(g.Path, parts), Measured: got.rate(s.Key), Tolerance: probe.Tolerance, Grain: 2 / took.Seconds()}
		if d.Size > 4096 || !d.Random {
			rate.Grain *= float64(d.Size)
		}
		if d.Buffered {
			rate.Tolerance = probe.ToleranceBuffered
		}
		return []Probed{r.judged(rate, rateText(s.Key, rate.Measured), took, func() string { return p.why(g.Path, s, false) })}
	}
	return l
}

func (p *prober) where() string {
	if p.o.Inside {
		return "inside"
	}
	return "beside"
}

// what names what is read or written.
func (p *prober) what(t *diskTarget) string {
	if t.dir != "" {
		return "a file without a name in " + t.dir
	}
	return strings.Join(t.paths, " and ")
}

func requestsOf(d probe.Disk) string {
	return fmt.Sprintf("%d requests of %s at a time", d.Depth, policy.Bytes(d.Size).Human())
}

// amounts are what loads read or wrote in a second.
type amounts struct{ bytes, ops float64 }

func (a amounts) rate(key policy.Key) float64 {
	if key == policy.KeyIOReadIOPS || key == policy.KeyIOWriteIOPS {
		return a.ops
	}
	return a.bytes
}

func rateText(key policy.Key, n float64) string {
	if key == policy.KeyIOReadIOPS || key == policy.KeyIOWriteIOPS {
		return fmt.Sprintf("%.0f/s", n)
	}
	return fmt.Sprintf("%.2f MB/s", n/1e6)
}

func (p *prober) diskPlace(group string) (*place, error) {
	if p.o.Inside {
		return p.inside(group, "blkio")
	}
	return p.beside(group, recipe{controllers: []string{"blkio"}})
}

// disk has loads read or write: one in a directory on the target, else one on each of its devices, at the same time. They share one place.
func (p *prober) disk(ctx context.Context, group string, t *diskTarget, d probe.Disk) (sum amounts, took time.Duration, err error) {
	orders := []probe.Disk{d}
	switch {
	case t.dir != "" && d.Write:
		orders[0].Dir = t.dir
	case t.dir != "":
		f, err := written(t.dir, d.File)
		if err != nil {
			return sum, 0, err
		}
		defer f.Close()
		orders[0].Device = procfs.DescriptorPath(os.Getpid(), int(f.Fd()))
	default:
		orders = nil
		for _, path := range t.paths {
			one := d
			one.Device, one.Most = path, d.Most/int64(len(t.paths))+int64(d.Depth*d.Size)
			orders = append(orders, one)
		}
	}
	pl, err := p.diskPlace(group)
	if err != nil {
		return sum, 0, err
	}
	defer pl.close()
	places := slices.Repeat([]*place{pl}, len(orders))
	answers, err := p.togetherAs(ctx, places, func(i int) probe.Order { return probe.Order{Disk: &orders[i]} }, d.Warm+d.Span)
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

// written makes a file without a name that is on the disk, for loads to read. It is written by this process, outside of every limit.
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
func (p *prober) oneOfSeveral(g classify.Group, t *diskTarget, parts policy.Settings, d probe.Disk) *ProbeLoad {
	s := parts[0]
	whole, ok := s.Whole.(policy.Rate)
	if !ok || s.Parts < 2 || s.Even() || len(t.paths) < 2 || t.dir != "" {
		return nil
	}
	alone := &diskTarget{on: t.on, paths: t.paths[:1], parts: map[policy.Key]policy.Settings{s.Key: parts[:1]}}
	d.Buffered = false
	l := &ProbeLoad{Key: s.Key, On: limitOf(p.v, g.Path, s).On, Device: alone.paths[0], Where: p.where(), Takes: d.Warm + d.Span, Bytes: d.Most}
	l.What = fmt.Sprintf("direct reads of %s alone, %s", alone.paths[0], requestsOf(d))
	l.run = func(ctx context.Context) []Probed {
		r := p.result(g.Path, s, "direct, one device alone")
		got, took, err := p.disk(ctx, g.Path, alone, d)
		if err != nil {
			return []Probed{r.failed(err)}
		}
		rate := probe.Rate{Asked: float64(whole), InForce: p.inForce(g.Path, parts[:1]), Measured: got.bytes, Grain: 2 * float64(d.Size) / took.Seconds()}
		why := fmt.Sprintf("the limit is halved: its %d devices have a part each, and what does not use all of them never gets the whole", s.Parts)
		if s.Parts > 2 {
			why = strings.Replace(why, "halved", "divided", 1)
		}
		r = r.judged(rate, rateText(s.Key, got.bytes), took, func() string { return why + "; no agent runs that would give it to where it is used" })
		if r.Verdict == probe.TooTight && p.o.Agent {
			r.Verdict, r.Reason = probe.NotReached, why+" at first; the agent gives more to where it is used, every ten seconds at most"
		}
		return []Probed{r}
	}
	return l
}

// dirtyLoad measures what is written through the page cache: a load in the group makes pages dirty, and this process has them written to
// the disk, as the kernel's own threads do.
func (p *prober) dirtyLoad(g classify.Group, t *diskTarget, parts policy.Settings, asked float64) ProbeLoad {
	s := parts[0]
	bytes := int64(min(max(1.5*asked*p.o.Span.Seconds(), 4<<20), mostDirtyBytes))
	l := ProbeLoad{Key: s.Key, On: limitOf(p.v, g.Path, s).On, Device: strings.Join(t.paths, " "), Where: p.where(), Bytes: bytes}
	l.Takes = time.Duration(float64(bytes) / asked * float64(time.Second))
	l.What = fmt.Sprintf("%s written into the page cache for %s, and from there to the disk", policy.Bytes(bytes).Human(), p.what(t))
	l.run = func(ctx context.Context) []Probed {
		r := p.result(g.Path, s, "buffered")
		var took time.Duration
		pl, err := p.diskPlace(g.Path)
		err = p.with(ctx, pl, err, func(load *probe.Load) error {
			begin := time.Now()
			a, err := load.Do(ctx, probe.Order{Dirty: &probe.Dirty{Dir: t.dir, Bytes: bytes}}, 4*l.Takes)
			if err == nil {
				bytes = a.Bytes
				err = probe.WriteBack(load, a.File)
			}
			took = time.Since(begin)
			return err
		})
		if err != nil {
			return []Probed{r.failed(err)}
		}
		got := float64(bytes) / took.Seconds()
		rate := probe.Rate{Asked: asked, InForce: p.inForce(g.Path, parts), Measured: got, Tolerance: probe.ToleranceBuffered}
		return []Probed{r.judged(rate, rateText(s.Key, got), took, func() string { return p.why(g.Path, s, true) })}
	}
	return l
}

// diskWeightLoad measures which part of a contended disk a group's weight gives it, beside a rival of another weight.
func (p *prober) diskWeightLoad(g classify.Group, s policy.Setting) *ProbeLoad {
	wants := wantedFor(p.v, g.Path, s)
	i := slices.IndexFunc(wants, func(w plan.Wanted) bool { return w.Row.PerDevice && strings.Contains(w.File, "weight") })
	d, ok := p.v.Facts.Device(s.Dev)
	switch {
	case i < 0 || !ok:
		return nil
	case p.o.Inside:
		p.leave(g.Path, s, "a weight is measured beside the group, against a rival of ours, not inside")
		return nil
	}
	w := wants[i]
	l := &ProbeLoad{Key: s.Key, On: limitOf(p.v, g.Path, s).On, Device: d.Name, Takes: warmUp + 2*p.o.Span, Bytes: 8 * mostProbeBytes}
	l.What = fmt.Sprintf("two processes contend for reads of %s, one with the group's weight and one with another", d.Name)
	l.run = func(ctx context.Context) []Probed {
		r := p.result(g.Path, s, "contended")
		broken := p.noWeight(s)
		share, took, err := p.contendDisk(ctx, g.Path, w, "/dev/"+strings.ReplaceAll(d.Name, "!", "/"), broken != "")
		if err != nil {
			return []Probed{r.failed(err)}
		}
		r = r.shared(share, took, func() string { return p.why(g.Path, s, false) })
		switch {
		case broken != "":
			r.Verdict, r.Reason = probe.NotEnforced, broken
		case r.Reason == whyUnknown: // two loads that wait for the CPU contend for no disk
			r.Verdict, r.Reason = probe.NotMeasured, "what holds weights is in its place, and the two loads did not keep the disk busy all the time"
		}
		return []Probed{r}
	}
	return l
}

// contendDisk has two loads read a device.
func (p *prober) contendDisk(ctx context.Context, group string, w plan.Wanted, device string, broken bool) (share probe.Share, took time.Duration, err error) {
	weight := number(w.Row.Parse(w.Value))
	rival := max(1, int64(weight)/10)
	if weight < 10 {
		rival = int64(weight) * 10
	}
	how := recipe{controllers: []string{"blkio"}}
	if broken { // then the kernel takes no weight
		how.without = []string{w.File}
	}
	ours, err := p.beside(group, how)
	if err != nil {
		return share, 0, err
	}
	defer ours.close()
	how.values = map[string]string{w.File: w.Key + " " + strconv.FormatInt(rival, 10)}
	theirs, err := p.beside(group, how)
	if err != nil {
		return share, 0, err
	}
	defer theirs.close()
	d := probe.Disk{Device: device, Size: 256 << 10, Depth: 4, Most: 4 * mostProbeBytes, Warm: warmUp, Span: 2 * p.o.Span}
	answers, err := p.together(ctx, []*place{ours, theirs}, probe.Order{Disk: &d}, warmUp+2*p.o.Span)
	if err != nil {
		return share, 0, err
	}
	// What ran out of bytes first left the other one alone: rates, not bytes, are compared.
	var rates [2]float64
	for i, a := range answers {
		rates[i], took = float64(a.Bytes)/a.Took.Seconds(), max(took, a.Took)
	}
	return probe.Share{Asked: probe.ShareOf(weight, float64(rival)), Measured: probe.ShareOf(rates[0], rates[1]), Tolerance: probe.ToleranceDisk}, took, nil
}

// whyReadBack explains what a kernel's file holds instead of what was asked.
func (p *prober) whyReadBack(b Verification) string {
	for _, g := range p.v.Classified.Groups {
		for _, s := range g.Settings {
			if s.Key == policy.KeyIOWeight && s.Key == b.Key && g.Path == b.Group && limitOf(p.v, g.Path, s).On == b.On {
				return cmp.Or(p.noWeight(s), p.whyDiffers(b))
			}
		}
	}
	return p.whyDiffers(b)
}

// noWeight says why no weight on a disk counts; "" when nothing is wrong with the disk.
func (p *prober) noWeight(s policy.Setting) string {
	d, _ := p.v.Facts.Device(s.Dev)
	now, err := blockdev.Queues{Block: p.c.Host.Block}.Scheduler(s.Dev)
	if at := strings.Index(now, "["); err == nil && at >= 0 {
		now, _, _ = strings.Cut(now[at+1:], "]")
	}
	switch {
	case s.Via == policy.ViaIOCost && !d.Cost.On():
		return "iocost is off on " + d.Name + ", so nothing honours weights there"
	case s.Via == policy.ViaBFQ && now != "bfq":
		return fmt.Sprintf("the scheduler of %s is %s, which honours no weight: bfq does", d.Name, cmp.Or(now, "not known"))
	}
	return ""
}

// localSink is a peer of ours on this host.
func localSink(ctx context.Context) (address string, stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("serve a load: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = probe.Sink(ctx, listener)
	}()
	return listener.Addr().String(), func() { cancel(); <-ended }, nil
}

// addressOf reads the address of ADDRESS:PORT.
func addressOf(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddrPort(text)
	return a.Addr().Unmap(), err == nil
}
