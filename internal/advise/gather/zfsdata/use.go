package zfsdata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/zfs"
)

// expendable says whether what is on a data set may be lost.
func expendable(d zfs.Dataset) bool {
	return d.Get(Expendable) == "on" || d.Properties[zfs.OfCopy].Source == "local"
}

// use reads what log and cache devices do, or would do. Figures that are not there leave the others.
func (l *Layout) use(ctx context.Context, h *host.Host, tools zfs.Tools, storage *blockdev.Storage) error {
	waits, err := tools.MeanWaits(ctx)
	if err != nil {
		err = fmt.Errorf("how long writes wait: %w", err)
	}
	for _, p := range l.Pools {
		u := Use{LogInMemory: []string{}, CacheInMemory: []string{}, Keeps: []string{}}
		s, failed := zfs.SyncedOf(h.Root, p.Name)
		switch {
		case failed == nil && s.Together && len(l.Pools) > 1: // of which pool they are is not known
		case failed == nil:
			u.Synced = &s
		case !errors.Is(failed, fs.ErrNotExist):
			err = errors.Join(err, failed)
		}
		u.Wait = waits[p.Name]["syncq"] + waits[p.Name]["disk"]
		for _, d := range p.Vdevs {
			for _, name := range d.Paths() {
				if !inMemory(storage, name) {
					continue
				}
				switch d.Role {
				case zfs.RoleLog:
					u.LogInMemory = append(u.LogInMemory, name)
				case zfs.RoleCache:
					u.CacheInMemory = append(u.CacheInMemory, name)
				}
			}
		}
		u.Keeps = append(u.Keeps, l.keeps(p.Name)...)
		l.Uses[p.Name] = u
	}
	lookups, failed := zfs.ReadLookups(h.Root)
	if failed == nil {
		l.Lookups = &lookups
	}
	return errors.Join(err, failed)
}

// keeps are the databases with files on a pool that may not be lost.
func (l *Layout) keeps(name string) (names []string) {
	for _, place := range l.Places {
		pool, _, _ := strings.Cut(place.Dataset, "/")
		if (pool == name || place.pool == name) && !place.Expendable && !slices.Contains(names, place.Instance) {
			names = append(names, place.Instance)
		}
	}
	return names
}

// poolOf is the pool that a layer lies on in the end; "" for none.
func poolOf(l *blockdev.Layer) string {
	if l.Kind == blockdev.Pool {
		return l.Name
	}
	for _, b := range l.Below {
		if name := poolOf(b.Layer); name != "" {
			return name
		}
	}
	return ""
}

var memoryName = regexp.MustCompile(`^/dev/(shm/.|z?ram[0-9]+(p[0-9]+)?$)`)

// inMemory says whether a disk or file is in memory. What cannot be found is not, unless its name says so.
func inMemory(storage *blockdev.Storage, name string) bool {
	if memoryName.MatchString(name) {
		return true
	}
	if storage == nil || !strings.HasPrefix(name, "/") {
		return false
	}
	place, err := storage.Place(0, name)
	return err == nil && place.Layer != nil && place.Layer.InMemory()
}

// devices gives the facts of a pool's log and cache devices.
func (l *Layout) devices(p zfs.Pool, v fact.Values) {
	u, known := l.Uses[p.Name]
	if !known {
		return
	}
	logs, logFiles, cache := []string{}, slices.Clone(u.LogInMemory), "zpool status -P "+p.Name
	for _, d := range p.Vdevs {
		if d.Role == zfs.RoleLog {
			logs = append(logs, d.Paths()...)
			logFiles = append(logFiles, d.Files()...)
		}
	}
	slices.Sort(logFiles)
	v["mount.pool_logs"] = fact.Known(logs, cache)
	v["mount.pool_log_files"] = fact.Known(slices.Compact(logFiles), cache)
	v["mount.pool_cache_memory"] = fact.Known(u.CacheInMemory, cache)
	v["mount.pool_keeps"] = fact.Known(u.Keeps, "zfs get "+Expendable)
	v["mount.pool_sync_wait"] = fact.Unknown("zpool iostat -l tells of no write")
	if u.Wait > 0 {
		v["mount.pool_sync_wait"] = fact.Known(u.Wait.Microseconds(), "zpool iostat -l "+p.Name+", since its import")
	}
	v["mount.pool_syncs"] = fact.Unknown("before OpenZFS 2.2 the module counts those of all pools in one")
	if u.Synced != nil {
		v["mount.pool_syncs"] = fact.Known(int64(u.Synced.PerSecond+0.5), fmt.Sprintf("%s, over %s", "zil_commit_count",
			u.Synced.Since.Round(time.Second)))
	}
}

// lookups gives the facts of the cache.
func (l *Layout) lookups(v fact.Values) {
	for _, name := range []string{"host.zfs_misses", "host.zfs_ghosts", "host.zfs_l2_hits", "host.zfs_l2_size"} {
		v[name] = fact.Unknown("there is no %s", zfs.ArcstatsFile)
	}
	c := l.Lookups
	if c == nil {
		return
	}
	from := fmt.Sprintf("%s, over %s", zfs.ArcstatsFile, c.Since.Round(time.Second))
	v["host.zfs_l2_size"] = fact.Known(c.DeviceBytes, from)
	v["host.zfs_misses"] = fact.Unknown("%s does not say since when it counts", zfs.ArcstatsFile)
	if c.Since > 0 {
		v["host.zfs_misses"] = fact.Known(int64(float64(c.Misses)/c.Since.Seconds()+0.5), from)
	}
	v["host.zfs_ghosts"], v["host.zfs_l2_hits"] = share(c.Ghosts, c.Misses, from),
		share(c.DeviceHits, c.DeviceHits+c.DeviceMisses, from)
}

// share is a part in per cent; 0 of nothing.
func share(part, all int64, from string) fact.Value {
	if all <= 0 {
		return fact.Known(int64(0), from)
	}
	return fact.Known(part*100/all, from)
}
