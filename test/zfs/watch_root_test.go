//go:build root

package zfs

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/observe"
	"bulkhead/internal/sampling"
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
