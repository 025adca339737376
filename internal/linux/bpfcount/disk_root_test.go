//go:build root

package bpfcount

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/testhost"
)

// reading reads 4 KiB at random places of a file, past the page cache, one after the other. For each line on its input
// it does so for so many nanoseconds, and says how many it read, and how long that took together.
func reading(file string) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	buf := make([]byte, 8192)
	buf = buf[4096-int(uintptr(unsafe.Pointer(&buf[0]))%4096):][:4096]
	for {
		var span int64
		if _, err := fmt.Scanln(&span); err != nil {
			return
		}
		n, took := 0, time.Duration(0)
		for end := time.Now().Add(time.Duration(span)); time.Now().Before(end); n++ {
			begun := time.Now()
			if _, err := unix.Pread(fd, buf, rand.Int64N(fileSize/4096)*4096); err != nil {
				fmt.Println(err)
				return
			}
			took += time.Since(begun)
		}
		fmt.Println(n, took.Nanoseconds())
	}
}

const fileSize = 64 << 20

// twoAtDisk are two groups, and a file for each, on the same device.
type twoAtDisk struct {
	*bench

	c     *Counter
	dir   string
	files map[string]string
}

// onDisks begins to count two groups at the device of the test's files. The test is skipped where that is none which
// does itself what it is asked for, and where this kernel cannot count.
func onDisks(t testing.TB) *twoAtDisk {
	t.Helper()
	d := &twoAtDisk{c: counting(t), bench: groupsOf(t, "victim", "hog"), files: map[string]string{}}
	var err error
	d.dir, err = os.MkdirTemp("/var/tmp", "bulkhead-disks-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(d.dir)) })
	for name := range d.dirs {
		d.files[name] = filepath.Join(d.dir, name)
		f, err := os.Create(d.files[name])
		check(t, err)
		for range fileSize >> 20 {
			_, err = f.Write(make([]byte, 1<<20))
			check(t, err)
		}
		check(t, errors.Join(f.Sync(), f.Close()))
	}
	check(t, d.c.Watch(d.ids))
	err = d.c.WatchDisks(deviceOf(t, d.dir), nil)
	var why *MissingError
	if errors.As(err, &why) && why.Why == OldKernel && !testhost.Since(t, 5, 11) {
		t.Skip(why)
	}
	check(t, err)
	return d
}

// deviceOf is the whole disk that a file system is on.
func deviceOf(t testing.TB, file string) []uint32 {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Stat(file, &st))
	sys, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		t.Skipf("the file system of %s is on no block device: %v", file, err)
	}
	if _, err := os.Stat(sys + "/partition"); err == nil {
		sys = filepath.Dir(sys)
	}
	if _, err := os.Stat(sys + "/mq"); err != nil {
		t.Skipf("%s has no requests of its own", sys)
	}
	text, err := os.ReadFile(sys + "/dev")
	check(t, err)
	var major, minor uint32
	_, err = fmt.Sscanf(string(text), "%d:%d", &major, &minor)
	check(t, err)
	return []uint32{Device(major, minor)}
}

// reader is a process of a group that reads its file when it is asked to: it gives how often, and how long that took.
func (d *twoAtDisk) reader(t testing.TB, group string) func(span time.Duration) (n uint64, took time.Duration) {
	t.Helper()
	in, out := d.child(t, "read "+d.files[group], group, 0)
	return func(span time.Duration) (n uint64, took time.Duration) {
		_, err := fmt.Fprintln(in, span.Nanoseconds())
		check(t, err)
		_, err = fmt.Fscanln(out, &n, &took)
		check(t, err)
		return n, took
	}
}

// meanwhile is what was counted of disks while something was done.
func (d *twoAtDisk) meanwhile(t testing.TB, do func()) map[string]Disk {
	t.Helper()
	before, err := d.c.Read()
	check(t, err)
	do()
	time.Sleep(50 * time.Millisecond) // what was asked for is done
	after, err := d.c.Read()
	check(t, err)
	all := map[string]Disk{}
	for name, w := range after {
		is, was := *w.Disk, before[name].Disk
		is.Waited -= was.Waited
		is.Service -= was.Service
		is.Own -= was.Own
		is.Outside -= was.Outside
		is.WrittenBack -= was.WrittenBack
		is.Requests -= was.Requests
		is.Lost -= was.Lost // of ends that were not seen it is known when the kernel takes the same request again
		sum := is.Service + is.Own + is.Outside + is.WrittenBack
		others := map[string]time.Duration{}
		for other, d := range is.Others {
			others[other] = d - was.Others[other]
			sum += others[other]
		}
		is.Others = others
		t.Logf("%s: %+v", name, is)
		if (sum - is.Waited).Abs() > time.Millisecond {
			t.Errorf("%s: rows are %v, waited %v", name, sum, is.Waited)
		}
		if is.Lost > is.Requests/20 {
			t.Errorf("%s: %d of %d lost", name, is.Lost, is.Requests)
		}
		all[name] = is
	}
	return all
}

// A group that is alone at a disk, with one request at a time, waits for the disk itself and not for its own load, for
// as many requests as it made, and as long as the kernel says in its statistics of the disk. Of what it waits more
// beside another one, which asks for much, that one has the most.
func TestWhoseRequests(t *testing.T) {
	d := onDisks(t)
	read := d.reader(t, "victim")
	var n uint64
	var took time.Duration
	all, ms := d.kernel(t)
	alone := d.meanwhile(t, func() { n, took = read(2 * time.Second) })["victim"]
	now, nowMs := d.kernel(t)
	each := alone.Waited / time.Duration(alone.Requests)
	t.Logf("alone it read %d times in %v: %v each; the disk did %d requests, reads in %d ms", n, took, each,
		now-all, nowMs-ms)
	if !few(alone.Requests, n, 0.02) {
		t.Errorf("%d requests were counted, it made %d", alone.Requests, n)
	}
	// In the kernel's statistics is also the time until who waits was told, and these programs' own.
	byKernel := time.Duration(nowMs-ms) * time.Millisecond
	quiet := few(now-all, n, 0.01) // hardly anybody else uses the disk
	if quiet && (alone.Waited < byKernel*3/4 || alone.Waited > byKernel*102/100) {
		t.Errorf("it waited %v by what was counted, %d ms by statistics of the disk", alone.Waited, nowMs-ms)
	}
	if alone.Waited > took || alone.Others["hog"] != 0 || alone.Own > alone.Waited/50 ||
		quiet && alone.Service < alone.Waited*9/10 {
		t.Errorf("of %v as it saw it, others have too much: %+v", took, alone)
	}
	hog := testhost.DirectReader(t, d.files["hog"])
	check(t, d.tree.Move(d.dirs["hog"], hog.ID))
	done := make(chan testhost.Rate, 1)
	var rate testhost.Rate
	got := d.meanwhile(t, func() {
		go func() { done <- hog.Sequential(3 * time.Second) }()
		time.Sleep(time.Second)
		n, took = read(time.Second)
		rate = <-done
	})
	v, h := got["victim"], got["hog"]
	more := v.Waited - time.Duration(v.Requests)*each
	t.Logf("beside the hog it read %d times in %v, and waited %v more; the hog read %.0f MB/s", n, took, more,
		rate.Bytes/1e6)
	if !few(v.Requests, n, 0.02) || v.Waited > took {
		t.Errorf("%d requests were counted, it made %d; %v of %v", v.Requests, n, v.Waited, took)
	}
	if v.Others["hog"] < more/2 {
		t.Errorf("of %v, %v more than alone, the hog has %v", v.Waited, more, v.Others["hog"])
	}
	if h.Own+h.Service < h.Waited/2 || h.Own < h.Service || h.Requests < uint64(3*rate.Ops*0.9) {
		t.Errorf("the hog: %+v", h)
	}
}

// Who has eight readers at a disk waits for its own load there, each for the seven others.
func TestParallelRequestsAreOwnLoad(t *testing.T) {
	d := onDisks(t)
	got := d.meanwhile(t, func() {
		var all sync.WaitGroup
		for range 8 {
			read := d.reader(t, "victim")
			all.Go(func() { read(2 * time.Second) })
		}
		all.Wait()
	})["victim"]
	if got.Own < got.Waited/2 || got.Service < got.Waited/16 {
		t.Errorf("of %v its own load has %v, and the disk itself %v", got.Waited, got.Own, got.Service)
	}
}

// few is whether numbers are the same but for a part: the kernel does not run the programs for each end of a request
// (0 to 0.8 % were seen).
func few(a, b uint64, part float64) bool { return math.Abs(float64(a)-float64(b)) <= part*float64(b)+5 }

// kernel is what the kernel's statistics of the disk have: how many requests, and how many milliseconds of reads.
func (d *twoAtDisk) kernel(t testing.TB) (n, ms uint64) {
	t.Helper()
	number := deviceOf(t, d.dir)[0]
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", number>>20, number&(1<<20-1)))
	check(t, err)
	var writes, skip uint64
	_, err = fmt.Sscan(string(text), &n, &skip, &skip, &ms, &writes)
	check(t, err)
	return n + writes, ms
}

// What is written through the page cache by who is in no group, and comes to the disk later, nobody waits for. The
// kernel writes it, and the wait of others is blamed on that.
func TestWhatIsWrittenBack(t *testing.T) {
	d := onDisks(t)
	read := d.reader(t, "victim")
	got := d.meanwhile(t, func() {
		stop, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- writeBack(d.files["hog"], stop) }()
		read(2 * time.Second)
		close(stop)
		check(t, <-ended)
	})
	if v := got["victim"]; v.WrittenBack < v.Waited/10 || v.Others["hog"] != 0 {
		t.Errorf("of %v the kernel has %v, and the hog, which does nothing, %v", v.Waited, v.WrittenBack,
			v.Others["hog"])
	}
	if h := got["hog"]; h.Waited != 0 {
		t.Errorf("the hog waits for %v", h.Waited)
	}
}

// writeBack writes a file through the page cache again and again, and has threads of the kernel bring it to the disk.
func writeBack(file string, stop chan struct{}) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	data := make([]byte, fileSize)
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if _, err := f.WriteAt(data, 0); err != nil {
			return err
		}
		if err := unix.Syncfs(int(f.Fd())); err != nil {
			return err
		}
	}
}

// Where programs of disks cannot be loaded, CPUs are counted all the same, and it is said why.
func TestDisksAreLeftOut(t *testing.T) {
	whole := blockObject
	blockObject = blockObject[:100]
	defer func() { blockObject = whole }()
	c := counting(t)
	check(t, c.Watch(map[string][]uint64{"a": {1 << 40}}))
	said := c.WatchDisks([]uint32{Device(8, 0)}, map[string][]uint64{"a": {1 << 40}})
	got, err := c.Read()
	check(t, err)
	var why *MissingError
	if got["a"] == nil || got["a"].Disk != nil || !errors.As(said, &why) {
		t.Errorf("%+v; disks: %v", got["a"], said)
	}
}

// BenchmarkRequest is what a request costs: told to the device and done, at as many as this disk does.
func BenchmarkRequest(b *testing.B) {
	d := onDisks(b)
	hog := testhost.DirectReader(b, d.files["hog"])
	check(b, d.tree.Move(d.dirs["hog"], hog.ID))
	stats, err := CountCost()
	if err != nil {
		b.Skip(err)
	}
	defer stats.Close()
	took := func() (ns, requests float64) {
		for _, name := range diskPrograms {
			s, err := d.c.disk.loaded.Programs[name].Stats()
			check(b, err)
			ns += float64(s.Runtime)
			if name == "count_complete" {
				requests = float64(s.RunCount)
			}
		}
		return ns, requests
	}
	before, done := took()
	begun := time.Now()
	for b.Loop() {
		hog.Random(time.Second)
	}
	after, now := took()
	b.ReportMetric((after-before)/(now-done), "ns/request")
	b.ReportMetric((now-done)/time.Since(begun).Seconds(), "requests/s")
}
