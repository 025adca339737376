package zfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"bulkhead/internal/linux/sysroot"
)

// Files of the kernel's module.
const (
	ArcstatsFile = "/proc/spl/kstat/zfs/arcstats"
	ArcMaxFile   = "/sys/module/zfs/parameters/zfs_arc_max"
	versionFile  = "/sys/module/zfs/version"
)

// Cache is the ARC, in bytes.
type Cache struct {
	Size int64 `json:"size"`
	Min  int64 `json:"min"` // the floor: a smaller asked for maximum is ignored without a word
	Max  int64 `json:"max"` // the maximum in force
	// Asked is zfs_arc_max; 0 is the module's own choice.
	Asked  int64 `json:"asked"`
	Hits   int64 `json:"hits"`
	Misses int64 `json:"misses"`
}

// Ignored says whether the maximum that was asked for is not the one in force.
func (c Cache) Ignored() bool { return c.Asked != 0 && c.Asked != c.Max }

// Version is that of the loaded module; "" where it is not loaded.
func Version(root *sysroot.FS) (string, error) {
	v, err := root.ReadText(versionFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return v, err
}

// ReadCache reads the ARC; the error is fs.ErrNotExist where the module is not loaded.
func ReadCache(root *sysroot.FS) (Cache, error) {
	text, err := root.ReadText(ArcstatsFile)
	if err != nil {
		return Cache{}, err
	}
	stats := arcstats(text)
	c := Cache{Size: stats["size"], Min: stats["c_min"], Max: stats["c_max"], Hits: stats["hits"],
		Misses: stats["misses"]}
	if c.Max == 0 {
		return c, fmt.Errorf("%s has no c_max", ArcstatsFile)
	}
	c.Asked, err = root.ReadInt(ArcMaxFile)
	return c, err
}

// arcstats reads the lines "name type value".
func arcstats(text string) map[string]int64 {
	stats := map[string]int64{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 {
			if n, err := strconv.ParseInt(f[2], 10, 64); err == nil {
				stats[f[0]] = n
			}
		}
	}
	return stats
}
