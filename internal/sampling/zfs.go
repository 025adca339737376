package sampling

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// zfs asks OpenZFS; nothing is asked, and nothing told, where its module is not loaded. A program that hangs with its
// pool is left behind, and nothing is asked until it has ended: each would hang.
func (k *Kernel) zfs(ctx context.Context, _ *collect.Meter) (collect.Put, error) {
	none := func(*observe.Sample) {}
	version, err := zfs.Version(k.host.Root)
	if err != nil || version == "" {
		return none, err
	}
	if k.zfsRuns.Load() > 0 {
		return none, fmt.Errorf("zfs(8) or zpool(8) of an earlier reading has not ended: %w", zfs.ErrTime)
	}
	told := &api.ZFS{}
	if told.Cache, err = zfs.ReadCache(k.host.Root); err != nil {
		return none, err
	}
	tools, err := zfs.Find(k.host.Root)
	if err != nil {
		return none, err
	}
	tools.Running = &k.zfsRuns
	if told.Pools, err = tools.PoolsUse(ctx, k.host.Root); err != nil {
		return none, err
	}
	sets, err := tools.DatasetsUse(ctx, k.host.Root)
	if err != nil {
		return none, err
	}
	mounts, err := mountinfo.Read(k.host.Root)
	if err != nil {
		return none, err
	}
	told.Datasets = grouped(sets, mounts, k.watched.Load().dirs)
	return func(s *observe.Sample) { s.Host.ZFS = told }, nil
}

// grouped says of each file system which group has its files there: that whose database has its data directory on it,
// or on the one named "data" beside it, as `zfs plan` and most instructions name them. That of several databases has
// none. Of file systems without a group it keeps mostOthers.
func grouped(sets []zfs.DatasetUse, mounts mountinfo.Mounts, dirs map[string]string) []api.Dataset {
	groups := map[string]string{}
	for group, dir := range dirs {
		if m, on := mounts.Of(dir); dir != "" && on && m.Type == "zfs" {
			if _, shared := groups[m.Source]; shared {
				group = ""
			}
			groups[m.Source] = group
		}
	}
	others, all := 0, make([]api.Dataset, 0, min(len(sets), 2*mostOthers))
	for _, d := range sets {
		group, is := groups[d.Name]
		if above, own := path.Split(d.Name); !is && slices.Contains(besideData, own) {
			group = groups[above+"data"]
		}
		if group == "" {
			others++
		}
		if group != "" || others <= mostOthers {
			all = append(all, api.Dataset{DatasetUse: d, Group: group})
		}
	}
	return all
}

// mostOthers is of how many file systems without a group is told: containers make thousands, of which each has seven
// figures, and one sample of the record has a bound.
const mostOthers = 200

// besideData are the names of file systems that belong to the one named "data" beside them.
var besideData = strings.Fields("log binlog relay undo tmp")
