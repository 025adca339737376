package blockdev_test

import (
	"testing"

	"bulkhead/internal/linux/blockdev"
)

// What lies on memory in the end is in memory; a disk that is only cached or logged there is not.
func TestInMemory(t *testing.T) {
	on := func(kind blockdev.LayerKind, name, role string, below ...*blockdev.Layer) *blockdev.Layer {
		l := &blockdev.Layer{Kind: kind, Name: name}
		for _, b := range below {
			l.Below = append(l.Below, blockdev.Link{Layer: b, Role: role})
		}
		return l
	}
	tmpfs := &blockdev.Layer{Kind: blockdev.Filesystem, Type: "tmpfs", Filesystem: blockdev.InMemory}
	ext4 := &blockdev.Layer{Kind: blockdev.Filesystem, Type: "ext4", Filesystem: blockdev.OnDevice}
	mirror, stripe := on(blockdev.RAID, "md0", ""), on(blockdev.RAID, "md1", "")
	mirror.Detail, stripe.Detail = "raid1, clean", "raid0, clean"
	disk, zram, ram := on(blockdev.Disk, "sda", ""), on(blockdev.Other, "zram0", ""), on(blockdev.Other, "ram1", "")
	for _, l := range []*blockdev.Layer{disk, ram} {
		mirror.Below = append(mirror.Below, blockdev.Link{Layer: l})
		stripe.Below = append(stripe.Below, blockdev.Link{Layer: l})
	}
	inPool := &blockdev.Layer{Kind: blockdev.Filesystem, Type: "zfs", Filesystem: blockdev.OnPool}
	inPool.Below = []blockdev.Link{{Layer: on(blockdev.Pool, "tank", "", disk, zram)}}
	for name, c := range map[string]struct {
		layer *blockdev.Layer
		want  bool
	}{
		"tmpfs": {tmpfs, true}, "zram": {zram, true}, "RAM disk": {ram, true}, "disk": {disk, false},
		"ext4":                       {ext4, false},
		"partition of zram":          {on(blockdev.Partition, "zram0p1", "", zram), true},
		"loop on tmpfs":              {on(blockdev.Loop, "loop0", "", on(blockdev.File, "/run/x", "", tmpfs)), true},
		"loop on ext4":               {on(blockdev.Loop, "loop0", "", on(blockdev.File, "/srv/x", "", ext4)), false},
		"volume with a part on zram": {on(blockdev.Volume, "vg/lv", "", disk, zram), true},
		"cached in memory":           {on(blockdev.Bcache, "bcache0", blockdev.RoleCache, ram), false},
		"dm-crypt on a RAM disk":     {on(blockdev.Crypt, "c", "", ram), true},
		"mirror of disk and memory":  {mirror, false},
		"stripe of disk and memory":  {stripe, true},
		"loop on a pool that has a cache or log in zram": {on(blockdev.Loop, "loop1", "",
			on(blockdev.File, "/tank/x", "", inPool)), false},
		"pool all in memory":             {on(blockdev.Pool, "r", "", zram, ram), true},
		"pool of which nothing is known": {on(blockdev.Pool, "r", ""), false},
		"nothing":                        {nil, false},
		"nbd":                            {on(blockdev.Other, "nbd0", ""), false},
		"named like one":                 {on(blockdev.Other, "ramp", ""), false},
	} {
		if got := c.layer.InMemory(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
