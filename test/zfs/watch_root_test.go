//go:build root

package zfs

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/advise/gather/zfsdata"
	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/observe"
	"bulkhead/internal/sampling"
	"bulkhead/internal/testhost"
)

// What was written to a file system, what compression made of it and how long the pool took are seen, and shown as
// metrics.
func TestWatching(t *testing.T) {
	r := newRig(t)
	data, _ := r.datasets("watched", "root", "16K")
	const written = 32 << 20
	// A quarter of each record is random: compressed, it takes a sector and a bit, and so two of four.
	half := make([]byte, 1<<20)
	for i := range half {
		if i%(16<<10) < 4<<10 {
			half[i] = byte(rand.Uint32())
		}
	}
	file, err := os.Create(filepath.Join(data, "file"))
	if err != nil {
		t.Fatal(err)
	}
	for range written / len(half) {
		_, one := file.Write(half)
		err = errors.Join(err, one)
	}
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
	r.must("zpool", "sync", pool)
	h := host.New("/")
	put, err := sampling.New(h).Sources()[observe.ZFS](t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &observe.Sample{}
	put(s)
	z := s.Host.ZFS
	if z == nil || z.Cache.Size <= 0 || z.Cache.Max < z.Cache.Min {
		t.Fatalf("of ZFS it tells %+v", z)
	}
	i := slices.IndexFunc(z.Datasets, func(d api.Dataset) bool { return d.Name == pool+"/watched/data" })
	if i < 0 {
		t.Fatalf("the file system is not there: %+v", z.Datasets)
	}
	d := z.Datasets[i]
	if !d.Counted || d.WrittenBytes < written || d.WrittenBytes > written+written/8 {
		t.Errorf("%d bytes were written, and it counts %+v", written, d)
	}
	if d.Logical < written || d.Logical > written+written/8 || d.Physical < written/2 || d.Physical > written*3/4 {
		t.Errorf("half of %d bytes can be compressed away, and it holds %+v", written, d)
	}
	i = slices.IndexFunc(z.Pools, func(p zfs.PoolUse) bool { return p.Name == pool })
	if i < 0 {
		t.Fatalf("the pool is not there: %+v", z.Pools)
	}
	if p := z.Pools[i]; p.Used < d.Physical || p.Size < p.Used || p.Groups == 0 || p.SlowestSync <= 0 ||
		p.SlowestSync > 10*time.Minute || p.Sync > p.SlowestSync {
		t.Errorf("of the pool it tells %+v", p)
	}
	t.Log(d)
	t.Log(z.Lines())
}

// checked is what zfs check says of an instance, once it could read all of it: an emulated machine may be too slow.
type checked struct {
	Uses    map[string]zfsdata.Use
	Lookups *zfs.Lookups
	Report  struct {
		Findings []struct {
			Rule     string
			Severity string
			Evidence json.RawMessage
		}
		Notes []string
	}
}

func (r *rig) check(instance string) (c checked, rules map[string]string) {
	r.t.Helper()
	for range 5 {
		c, rules = checked{}, map[string]string{}
		r.does(&c, "zfs", "check", instance)
		if len(c.Report.Notes) == 0 {
			break
		}
		r.t.Logf("once more: %q", c.Report.Notes)
	}
	for _, f := range c.Report.Findings {
		rules[f.Rule] += f.Severity + " " + string(f.Evidence)
	}
	return c, rules
}

// Commits of a MariaDB are counted as synced writes with what each waits, and go to a log device where there is one. A
// log device and a cache device in memory are found, but for databases that may be lost.
func TestDevicesInMemory(t *testing.T) {
	r := newRig(t)
	s := r.mariadb()
	s.exec("CREATE DATABASE load_test")
	s.in("load_test")
	l := s.load()
	r.waits(l)
	total := func() (n int64) {
		for _, one := range l.reached() {
			n += one
		}
		return n
	}
	before := total()
	c, rules := r.check(s.name)
	u := c.Uses[pool]
	if u.Synced == nil || u.Synced.Disks == 0 || u.Synced.Log != 0 || u.Wait <= 0 || c.Lookups == nil ||
		c.Lookups.Hits == 0 || !slices.Equal(u.Keeps, []string{s.name}) {
		t.Fatalf("%+v, lookups %+v", u, c.Lookups)
	}
	// Commits of several writers may share one.
	if asked := u.Synced.PerSecond * u.Synced.Since.Seconds(); asked < float64(before)/writers {
		t.Errorf("%d transactions were committed, and %.0f synced writes were counted", before, asked)
	}
	for _, id := range []string{"ZFS-14", "ZFS-32"} {
		if rules[id] != "" {
			t.Errorf("%s, and there are no such devices: %s", id, rules[id])
		}
	}
	t.Log(r.does(nil, "zfs", "check", s.name))
	for _, name := range []string{"/dev/shm/slog.img", "/dev/shm/cache.img"} {
		r.must("truncate", "-s", "80M", name)
		t.Cleanup(func() { _ = os.Remove(name) })
	}
	loop := r.must("losetup", "--find", "--show", "/dev/shm/cache.img")
	t.Cleanup(func() { r.must("losetup", "-d", loop) })
	r.must("zpool", "add", "-f", pool, "log", "/dev/shm/slog.img")
	r.must("zpool", "add", "-f", pool, "cache", loop)
	t.Cleanup(func() { r.must("zpool", "remove", pool, "/dev/shm/slog.img", loop) })
	was := total()
	testhost.WaitLong(t, time.Minute, "commits on the log device", func() bool { return total() > was+20 })
	c, rules = r.check(s.name)
	if u = c.Uses[pool]; u.Synced == nil || u.Synced.Log == 0 {
		t.Errorf("nothing went to the log device: %+v", u.Synced)
	}
	if !slices.Equal(u.CacheInMemory, []string{loop}) || !slices.Equal(u.LogInMemory, []string{"/dev/shm/slog.img"}) {
		t.Errorf("in memory: %+v", u)
	}
	if !strings.Contains(rules["ZFS-14"], "critical") || !strings.Contains(rules["ZFS-14"], "/dev/shm/slog.img") ||
		!strings.Contains(rules["ZFS-32"], "high") || !strings.Contains(rules["ZFS-32"], loop) {
		t.Errorf("found: %q", rules)
	}
	t.Log(r.does(nil, "zfs", "check", s.name))
	r.must("zfs", "set", zfsdata.Expendable+"=on", pool+"/my")
	if c, rules = r.check(s.name); rules["ZFS-14"]+rules["ZFS-32"] != "" || len(c.Uses[pool].Keeps) > 0 {
		t.Errorf("it may be lost, and is kept: %+v, %q", c.Uses[pool], rules)
	}
	l.stop()
	t.Logf("%.1f synced writes in a second, each about %v; %d records went to the disks and %d to the log device; "+
		"lookups: %+v", u.Synced.PerSecond, u.Wait.Round(time.Microsecond), u.Synced.Disks, u.Synced.Log, *c.Lookups)
}
