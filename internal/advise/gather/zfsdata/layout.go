package zfsdata

import (
	"strings"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/linux/zfs"
)

// Layout is what ZFS holds of the databases.
type Layout struct {
	Module string     `json:"module"` // version of the kernel's module; "" where it is not loaded
	Cache  *zfs.Cache `json:"cache,omitempty"`
	Pools  []zfs.Pool `json:"pools"`
	Places []Place    `json:"places"`
	// Uses has what log and cache devices do, or would, by pool, and Lookups the same of the cache; nil: not known.
	Uses    map[string]Use `json:"uses"`
	Lookups *zfs.Lookups   `json:"lookups,omitempty"`
	// Trouble says what could not be read, and why.
	Trouble []string `json:"trouble"`

	points map[string]string // dataset by its mount point
}

// Place is one kind of an instance's files and the dataset that holds them.
type Place struct {
	Instance string         `json:"instance"`
	Kind     datafiles.Kind `json:"kind"`
	Path     string         `json:"path"`
	// Dataset is "" for files that are on no ZFS; Filesystem is the type there.
	Dataset    string                  `json:"dataset"`
	Filesystem string                  `json:"filesystem"`
	Properties map[string]zfs.Property `json:"properties,omitempty"`
	// Expendable says that it is marked as one that may be lost.
	Expendable bool `json:"expendable"`

	pool string // the one that they lie on in the end, also by a volume or a loop device
}

// Use is what is synced on a pool, where that waits, and what its log and cache devices are.
type Use struct {
	Synced *zfs.Synced `json:"synced,omitempty"` // nil: not known
	// Wait is how long a write took in the queue of synced ones and on the disks, on average since the pool was
	// imported; 0: not known, or there was none.
	Wait time.Duration `json:"wait_ns"`
	// LogInMemory and CacheInMemory are the disks and files of log and cache devices that are in memory.
	LogInMemory   []string `json:"log_in_memory"`
	CacheInMemory []string `json:"cache_in_memory"`
	// Keeps are the databases with files on it that are not marked as ones that may be lost.
	Keeps []string `json:"databases_to_keep"`
}

// Expendable is the property of a data set that says that the database on it may be lost, as a replica may: "on". A
// copy of `zfs clone` may be lost, too.
const Expendable = "bulkhead:expendable"

// why is the reason for what is not known.
func (l *Layout) why() fact.Value {
	if len(l.Trouble) > 0 {
		return fact.Unknown("%s", strings.Join(l.Trouble, "; "))
	}
	return fact.Unknown("ZFS does not tell it")
}
