package zfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/linux/sysroot"
)

// kstats has a directory of figures for each imported pool (module/zfs/spa_stats.c, dataset_kstats.c of OpenZFS).
const kstats = "/proc/spl/kstat/zfs"

// DatasetUse is what a file system holds, and what was read and written since it was mounted.
type DatasetUse struct {
	Name string `json:"name"`
	// Physical is what its files take in the pool, bytes, also where a snapshot or the origin of a clone shares them
	// (referenced); Logical is what they were before compression (logicalreferenced). Snapshots is what only its
	// snapshots hold. What is below it does not count.
	Physical  int64 `json:"physical_bytes"`
	Logical   int64 `json:"logical_bytes"`
	Snapshots int64 `json:"snapshots_bytes"`
	// Counted says that the module counts for it what follows: it is mounted.
	Counted      bool  `json:"counted"`
	Reads        int64 `json:"reads"`
	Writes       int64 `json:"writes"`
	ReadBytes    int64 `json:"read_bytes"`
	WrittenBytes int64 `json:"written_bytes"`
}

// Waits says for how long requests of one second took on average, by what they waited for; nil where there were none.
type Waits map[string]time.Duration

// PoolUse is what a pool has, and how its last writes went.
type PoolUse struct {
	Name string `json:"name"`
	Size int64  `json:"size_bytes"`
	Used int64  `json:"used_bytes"`
	Free int64  `json:"free_bytes"`
	// Fragmentation is that of the free space, in per cent; -1 where the pool does not tell.
	Fragmentation int64 `json:"fragmentation_percent"`
	// Groups is of how many groups of transactions the module tells (zfs_txg_history); 0: of none. Sync is for how long
	// the last of them that is complete was written, and SlowestSync the slowest.
	Groups      int           `json:"txgs"`
	Sync        time.Duration `json:"txg_sync_ns"`
	SlowestSync time.Duration `json:"txg_slowest_sync_ns"`
	// Reads and Writes are the waits of the second that was looked at, by total, disk, syncq and asyncq, as
	// zpool-iostat(8) has them with -l.
	Reads  Waits `json:"read_waits_ns,omitempty"`
	Writes Waits `json:"write_waits_ns,omitempty"`
}

// WaitColumns are those of zpool iostat -l behind the seven that it always has, reads and writes alternately.
var WaitColumns = []string{"total", "disk", "syncq", "asyncq"}

// DatasetsUse gives every file system of the imported pools.
func (t Tools) DatasetsUse(ctx context.Context, root *sysroot.FS) ([]DatasetUse, error) {
	out, err := t.Run(ctx, t.ZFS, "list", "-H", "-p", "-t", "filesystem",
		"-o", "name,referenced,logicalreferenced,usedbysnapshots")
	if err != nil {
		return nil, err
	}
	counted := map[string]map[string]map[string]int64{} // by the pool
	var all []DatasetUse
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 4 {
			return nil, fmt.Errorf("read the file systems of ZFS: %q has %d columns and not 4", line, len(f))
		}
		d := DatasetUse{Name: f[0], Physical: max(number(f[1]), 0), Logical: max(number(f[2]), 0),
			Snapshots: max(number(f[3]), 0)}
		pool, _, _ := strings.Cut(d.Name, "/")
		if counted[pool] == nil {
			if counted[pool], err = objsets(root, pool); err != nil {
				return nil, err
			}
		}
		var stats map[string]int64
		if stats, d.Counted = counted[pool][d.Name]; d.Counted {
			d.Reads, d.Writes = stats["reads"], stats["writes"]
			d.ReadBytes, d.WrittenBytes = stats["nread"], stats["nwritten"]
		}
		all = append(all, d)
	}
	return all, nil
}

// objsets reads what is counted of each mounted file system of a pool, by its name; nothing where the module does not
// count (before OpenZFS 0.8).
func objsets(root *sysroot.FS, pool string) (map[string]map[string]int64, error) {
	texts, err := objsetTexts(root, pool)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]int64{}
	for _, text := range texts {
		for line := range strings.Lines(text) {
			rest, is := strings.CutPrefix(line, "dataset_name")
			if f := strings.SplitN(strings.TrimSpace(rest), " ", 2); is && len(f) == 2 {
				all[strings.TrimSpace(f[1])] = arcstats(text)
			}
		}
	}
	return all, nil
}

// PoolsUse gives the imported pools. It takes a second, in which zpool-iostat(8) looks on.
func (t Tools) PoolsUse(ctx context.Context, root *sysroot.FS) ([]PoolUse, error) {
	out, err := t.Run(ctx, t.Zpool, "list", "-H", "-p", "-o", "name,size,allocated,free,fragmentation")
	if err != nil || out == "" {
		return nil, err
	}
	var all []PoolUse
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 5 {
			return nil, fmt.Errorf("read the pools: %q has %d columns and not 5", line, len(f))
		}
		p := PoolUse{Name: f[0], Size: number(f[1]), Used: number(f[2]), Free: number(f[3]),
			Fragmentation: number(f[4])}
		text, err := root.ReadText(path.Join(kstats, p.Name, "txgs"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		p.Groups, p.Sync, p.SlowestSync = syncs(text)
		all = append(all, p)
	}
	if out, err = t.Run(ctx, t.Zpool, "iostat", "-H", "-p", "-l", "-y", "1", "1"); err != nil {
		return nil, err
	}
	waits := waitsOf(out)
	for i := range all {
		all[i].Reads, all[i].Writes = waits[all[i].Name][0], waits[all[i].Name][1]
	}
	return all, nil
}

// syncs reads the groups of transactions that are committed: the time that each was written is the last column.
func syncs(text string) (groups int, last, slowest time.Duration) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 12 || f[2] != "C" {
			continue
		}
		if ns, err := strconv.ParseInt(f[11], 10, 64); err == nil && ns >= 0 {
			groups, last, slowest = groups+1, time.Duration(ns), max(slowest, time.Duration(ns))
		}
	}
	return groups, last, slowest
}

// waitsOf reads the waits of pools, of reads and of writes. What there was none of is "-", and 0 in some versions.
func waitsOf(out string) map[string][2]Waits {
	all := map[string][2]Waits{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		const before = 7 // name, allocated, free, operations and bytes
		if len(f) < before+2*len(WaitColumns) {
			continue
		}
		both := [2]Waits{}
		for i, name := range WaitColumns {
			for at := range both {
				ns := number(f[before+2*i+at])
				if ns <= 0 {
					continue
				}
				if both[at] == nil {
					both[at] = Waits{}
				}
				both[at][name] = time.Duration(ns)
			}
		}
		all[f[0]] = both
	}
	return all
}
