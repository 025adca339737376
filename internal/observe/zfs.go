package observe

import (
	"bulkhead/internal/api"
	"bulkhead/internal/linux/zfs"
)

// zfsRows are the metrics of OpenZFS: of the cache, of pools and of file systems. The group of a file system is that
// whose database has files there.
var zfsRows = []Row{
	zfsRow("cache_bytes", "`/proc/spl/kstat/zfs/arcstats`",
		"Size of the cache (ARC), its floor, and the most that it may be.", zfsCache, "kind"),
	zfsRow("cache_lookups_total", "`/proc/spl/kstat/zfs/arcstats`", "Lookups in the cache, by hit and miss.",
		zfsLookups, "event"),
	zfsRow("pool_bytes", "zpool-list(8)", "Size of a pool, what is used, and what is free, before parity of raidz.",
		ofPools(func(p *zfs.PoolUse, tell Tell) {
			tell(float64(p.Size), p.Name, "size")
			tell(float64(p.Used), p.Name, "used")
			tell(float64(p.Free), p.Name, "free")
		}), "pool", "kind"),
	zfsRow("pool_fragmentation_ratio", "zpool-list(8)", "How fragmented the free space of a pool is, 0 to 1.",
		ofPools(func(p *zfs.PoolUse, tell Tell) {
			if p.Fragmentation >= 0 {
				tell(float64(p.Fragmentation)/100, p.Name)
			}
		}), "pool"),
	zfsRow("sync_seconds", "`/proc/spl/kstat/zfs/POOL/txgs`",
		"For how long groups of transactions were written to a pool: the last one, and the slowest of those that the "+
			"module remembers (zfs_txg_history).",
		ofPools(func(p *zfs.PoolUse, tell Tell) {
			if p.Groups > 0 {
				tell(p.Sync.Seconds(), p.Name, "last")
				tell(p.SlowestSync.Seconds(), p.Name, "slowest")
			}
		}), "pool", "kind"),
	zfsRow("wait_seconds", "zpool-iostat(8) with -l",
		"Average time that requests of a pool took within one second, in all and by what they waited for.",
		ofPools(func(p *zfs.PoolUse, tell Tell) {
			for _, kind := range zfs.WaitColumns {
				if d, was := p.Reads[kind]; was {
					tell(d.Seconds(), p.Name, kind, "read")
				}
				if d, was := p.Writes[kind]; was {
					tell(d.Seconds(), p.Name, kind, "write")
				}
			}
		}), "pool", "kind", "direction"),
	zfsRow("dataset_bytes", "zfs-list(8)",
		"What a file system holds before compression (logical), in its pool (physical), and what only its snapshots "+
			"hold.",
		ofDatasets(func(d *api.Dataset, tell Tell) {
			tell(float64(d.Logical), "logical")
			tell(float64(d.Physical), "physical")
			tell(float64(d.Snapshots), "snapshots")
		}), "dataset", "group", "kind"),
	zfsRow("dataset_io_bytes_total", "`/proc/spl/kstat/zfs/POOL/objset-*`",
		"Bytes that were read from and written to a file system, from and to the cache too.",
		ofCounted(func(d *api.Dataset) (read, written int64) { return d.ReadBytes, d.WrittenBytes }),
		"dataset", "group", "direction"),
	zfsRow("dataset_operations_total", "`/proc/spl/kstat/zfs/POOL/objset-*`",
		"Calls that read from and wrote to a file system.",
		ofCounted(func(d *api.Dataset) (read, written int64) { return d.Reads, d.Writes }),
		"dataset", "group", "direction"),
}

// zfsRow is a row that needs ZFS to be there.
func zfsRow(name, source, help string, tell func(*api.ZFS, Tell), labels ...string) Row {
	r := figures(ZFS, "zfs_"+name, source, help, labels...)
	r.sample = func(s *Sample, to Tell) {
		if s.Host.ZFS != nil {
			tell(s.Host.ZFS, to)
		}
	}
	return r
}

func zfsCache(z *api.ZFS, tell Tell) {
	tell(float64(z.Cache.Size), "size")
	tell(float64(z.Cache.Min), "floor")
	tell(float64(z.Cache.Max), "most")
}

func zfsLookups(z *api.ZFS, tell Tell) {
	tell(float64(z.Cache.Hits), "hit")
	tell(float64(z.Cache.Misses), "miss")
}

func ofPools(of func(*zfs.PoolUse, Tell)) func(*api.ZFS, Tell) {
	return func(z *api.ZFS, tell Tell) {
		for i := range z.Pools {
			of(&z.Pools[i], tell)
		}
	}
}

func ofDatasets(of func(*api.Dataset, Tell)) func(*api.ZFS, Tell) {
	return func(z *api.ZFS, tell Tell) {
		for i := range z.Datasets {
			d := &z.Datasets[i]
			of(d, func(value float64, label ...string) { tell(value, d.Name, d.Group, label[0]) })
		}
	}
}

// ofCounted tells what was read and written of file systems of which the module counts it.
func ofCounted(of func(*api.Dataset) (read, written int64)) func(*api.ZFS, Tell) {
	return ofDatasets(func(d *api.Dataset, tell Tell) {
		if read, written := of(d); d.Counted {
			tell(float64(read), "read")
			tell(float64(written), "write")
		}
	})
}
