package api

import (
	"fmt"
	"slices"

	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/policy"
)

// ZFS is what pools and file systems of OpenZFS hold, and how that goes.
type ZFS struct {
	Cache    zfs.Cache     `json:"cache"`
	Pools    []zfs.PoolUse `json:"pools"`
	Datasets []Dataset     `json:"datasets"`
}

// Dataset is a file system of OpenZFS, and the group whose database has its files there; "" for none.
type Dataset struct {
	zfs.DatasetUse

	Group string `json:"group,omitempty"`
}

// Of gives the file systems of a group.
func (z *ZFS) Of(group string) []Dataset {
	if z == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(z.Datasets), func(d Dataset) bool { return d.Group != group })
}

// DatasetText says for people what a file system holds: bytes before compression and in the pool, and what only its
// snapshots hold.
func DatasetText(name string, logical, physical, snapshots float64) string {
	size := func(n float64) string { return policy.Bytes(n).Human() }
	text := fmt.Sprintf("%s holds %s in %s of its pool", name, size(logical), size(physical))
	if physical > 0 {
		text += fmt.Sprintf(" (ratio %.2f)", logical/physical)
	}
	if snapshots > 0 {
		text += fmt.Sprintf("; its snapshots hold %s more", size(snapshots))
	}
	return text
}

// String says it for people.
func (d Dataset) String() string {
	return DatasetText(d.Name, float64(d.Logical), float64(d.Physical), float64(d.Snapshots))
}

// CacheText says for people how large the cache is, and how many lookups it answered since boot.
func CacheText(size, most, hits, misses float64) string {
	text := fmt.Sprintf("the cache (ARC) has %s of %s", policy.Bytes(size).Human(), policy.Bytes(most).Human())
	if hits+misses > 0 {
		text += fmt.Sprintf(", and answered %.1f %% of lookups since boot", 100*hits/(hits+misses))
	}
	return text
}

// PoolText says for people how full a pool is, and how long its groups of writes took, in seconds.
func PoolText(name string, used, size, last, slowest float64) string {
	text := fmt.Sprintf("pool %s uses %s of %s", name, policy.Bytes(used).Human(), policy.Bytes(size).Human())
	if slowest > 0 {
		text += fmt.Sprintf("; its last group of writes took %.3g s, the slowest of late %.3g s", last, slowest)
	}
	return text
}

// Lines says for people what is of no group.
func (z *ZFS) Lines() (all []string) {
	if z == nil {
		return nil
	}
	all = append(all, CacheText(float64(z.Cache.Size), float64(z.Cache.Max), float64(z.Cache.Hits),
		float64(z.Cache.Misses)))
	for _, p := range z.Pools {
		all = append(all, PoolText(p.Name, float64(p.Used), float64(p.Size), p.Sync.Seconds(), p.SlowestSync.Seconds()))
	}
	return all
}
