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

const zilFile = kstats + "/zil"

// Synced is what was asked of the intent log (ZIL) of a pool: fsync(2) and writes with O_SYNC (zil.h of OpenZFS).
type Synced struct {
	// PerSecond is how many commits of it were asked for, on average over Since.
	PerSecond float64 `json:"per_second"`
	// Disks and Log are how many records went to the disks of the pool and to its log devices.
	Disks int64 `json:"records_to_disks"`
	Log   int64 `json:"records_to_log_devices"`
	// Since is for how long the module has counted: since it was loaded, or the file system was mounted. Of several
	// file systems it is the longest.
	Since time.Duration `json:"since_ns"`
	// Together says that the module counts those of all pools in one.
	Together bool `json:"all_pools_together"`
}

// add adds what was counted in some time.
func (s *Synced) add(stats map[string]int64, since time.Duration) {
	if since > 0 {
		s.PerSecond += float64(stats["zil_commit_count"]) / since.Seconds()
	}
	s.Disks += stats["zil_itx_metaslab_normal_count"]
	s.Log += stats["zil_itx_metaslab_slog_count"]
	s.Since = max(s.Since, since)
}

// SyncedOf is what was asked of the intent log of a pool. OpenZFS since 2.2 counts it by file system; before it counts
// all pools in one. The error is fs.ErrNotExist where the module does not tell.
func SyncedOf(root *sysroot.FS, pool string) (Synced, error) {
	var s Synced
	texts, err := objsetTexts(root, pool)
	if err != nil {
		return s, err
	}
	counted := false
	for _, text := range texts {
		stats := arcstats(text)
		if _, is := stats["zil_commit_count"]; is {
			counted = true
			s.add(stats, counting(text))
		}
	}
	if counted {
		return s, nil
	}
	text, err := root.ReadText(zilFile)
	if err != nil {
		return s, err
	}
	s.Together = true
	s.add(arcstats(text), counting(text))
	if s.Since == 0 {
		return s, fmt.Errorf("read %s: it does not say since when it counts", zilFile)
	}
	return s, nil
}

// objsetTexts are the files with what is counted of each mounted file system of a pool.
func objsetTexts(root *sysroot.FS, pool string) ([]string, error) {
	dir := path.Join(kstats, pool)
	files, err := root.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var texts []string
	for _, file := range files {
		if !strings.HasPrefix(file, "objset-") {
			continue
		}
		text, err := root.ReadText(path.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // unmounted meanwhile
		}
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// counting is for how long a file of the module has counted, by its first line: the last two numbers are when it was
// made and when it was read, in nanoseconds (spl-kstat.c). 0 where it does not say.
func counting(text string) time.Duration {
	first, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(first)
	if len(f) != 7 {
		return 0
	}
	made, err := strconv.ParseInt(f[5], 10, 64)
	read, err2 := strconv.ParseInt(f[6], 10, 64)
	if err != nil || err2 != nil || read <= made {
		return 0
	}
	return time.Duration(read - made)
}

// MeanWaits are the waits of the writes of each pool, on average since it was imported, as zpool-iostat(8) has them in
// its first report.
func (t Tools) MeanWaits(ctx context.Context) (map[string]Waits, error) {
	out, err := t.Run(ctx, t.Zpool, "iostat", "-H", "-p", "-l")
	if err != nil {
		return nil, err
	}
	all := map[string]Waits{}
	for name, both := range waitsOf(out) {
		all[name] = both[1]
	}
	return all, nil
}

// Lookups is what was looked up in the cache (ARC), and in cache devices (L2ARC) where there are some.
type Lookups struct {
	Hits   int64 `json:"hits"`
	Misses int64 `json:"misses"`
	// Ghosts are those of the misses whose block had fallen out of the cache a short time before: its name was still
	// known. A larger cache would have had it.
	Ghosts int64 `json:"ghost_hits"`
	// DeviceHits, DeviceMisses and DeviceBytes are of cache devices, and what these hold.
	DeviceHits   int64         `json:"device_hits"`
	DeviceMisses int64         `json:"device_misses"`
	DeviceBytes  int64         `json:"device_bytes"`
	Since        time.Duration `json:"since_ns"` // for how long the module has counted
}

// ReadLookups reads them; the error is fs.ErrNotExist where the module is not loaded.
func ReadLookups(root *sysroot.FS) (Lookups, error) {
	text, err := root.ReadText(ArcstatsFile)
	if err != nil {
		return Lookups{}, err
	}
	s := arcstats(text)
	return Lookups{Hits: s["hits"], Misses: s["misses"], Ghosts: s["mru_ghost_hits"] + s["mfu_ghost_hits"],
		DeviceHits: s["l2_hits"], DeviceMisses: s["l2_misses"], DeviceBytes: s["l2_size"], Since: counting(text)}, nil
}
