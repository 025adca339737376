package zfsdata

import (
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/linux/zfs"
)

// Host gives the facts of the host.
func (l *Layout) Host() fact.Values {
	asked := fact.Known(int64(0), "there is no "+zfs.ArcstatsFile)
	switch {
	case l.Cache != nil:
		asked = fact.Known(l.Cache.Asked, zfs.ArcMaxFile)
	case l.Module != "":
		asked = l.why()
	}
	v := fact.Values{"host.zfs_cache_asked": asked}
	l.lookups(v)
	return v
}

// Mount gives the facts of a mounted file system: those of its pool.
func (l *Layout) Mount(point string) fact.Values {
	v := fact.Values{}
	dataset, is := l.points[point]
	reason := fact.Unknown("it is no ZFS")
	if is {
		reason = l.why()
	}
	for _, row := range fact.Table {
		if row.Scope() == fact.Mount && strings.HasPrefix(row.Name, "mount.pool_") && row.Name != "mount.pool_state" {
			v[row.Name] = reason
		}
	}
	name, _, _ := strings.Cut(dataset, "/")
	at := slices.IndexFunc(l.Pools, func(p zfs.Pool) bool { return p.Name == name })
	if !is || at < 0 {
		return v
	}
	p := l.Pools[at]
	from := func(column string) string { return "zpool list -o " + column + " " + name }
	if p.Size > 0 {
		v["mount.pool_free"] = fact.Known(p.Free*100/p.Size, from("free,size"))
	}
	if p.Fragmentation >= 0 {
		v["mount.pool_fragmentation"] = fact.Known(p.Fragmentation, from("fragmentation"))
	}
	v["mount.pool_ashift"] = fact.Unknown("each vdev of %s found its own: zdb -C %s", name, name)
	if p.Ashift > 0 {
		v["mount.pool_ashift"] = fact.Known(p.Ashift, from("ashift"))
	}
	files, single, singleLogs := []string{}, []string{}, []string{}
	for _, d := range p.Vdevs {
		switch d.Role {
		case zfs.RoleData:
			files = append(files, d.Files()...)
			if !d.Redundant() {
				single = append(single, d.Name)
			}
		case zfs.RoleLog:
			if !d.Redundant() {
				singleLogs = append(singleLogs, d.Name)
			}
		}
	}
	for key, list := range map[string][]string{"mount.pool_files": files, "mount.pool_single": single,
		"mount.pool_log_single": singleLogs} {
		v[key] = fact.Known(list, "zpool status -P "+name)
	}
	l.devices(p, v)
	return v
}

// Instance gives the facts of an instance.
func (l *Layout) Instance(name string) fact.Values {
	reason := fact.Unknown("its data is on no ZFS")
	places := []Place{}
	for _, p := range l.Places {
		if p.Instance == name {
			places = append(places, p)
		}
	}
	at := slices.IndexFunc(places, func(p Place) bool { return p.Kind == datafiles.Data && p.Dataset != "" })
	if at >= 0 {
		reason = l.why()
	}
	v := fact.Values{}
	for _, row := range fact.Table {
		if strings.HasPrefix(row.Name, "instance.zfs_") {
			v[row.Name] = reason
		}
	}
	if at < 0 || places[at].Properties == nil {
		return v
	}
	data := places[at]
	for _, property := range []string{"compression", "primarycache", "logbias", "xattr"} {
		if _, has := data.Properties[property]; has {
			v["instance.zfs_"+property] = fact.Known(data.Properties[property].Value, data.from(property))
		}
	}
	l.xattr(data, v)
	v["instance.zfs_recordsize"] = data.recordsize(v["instance.zfs_recordsize"])
	redo := slices.IndexFunc(places, func(p Place) bool { return p.Kind == datafiles.Redo && p.Properties != nil })
	v["instance.zfs_log_recordsize"] = fact.Unknown("its redo log was not found on ZFS")
	if redo >= 0 {
		v["instance.zfs_log_recordsize"] = places[redo].recordsize(v["instance.zfs_log_recordsize"])
	}
	l.together(places, data, v)
	return v
}

// xattr: before 2.3 "on" is a hidden directory for each file, since then it is what sa is.
func (l *Layout) xattr(data Place, v fact.Values) {
	if data.Properties["xattr"].Value == "on" && l.Module != "" {
		if fact.Since(l.Module, "2.3") {
			v["instance.zfs_xattr"] = fact.Known("sa", data.from("xattr")+"; on is sa since 2.3")
		} else {
			v["instance.zfs_xattr"] = fact.Known("dir", data.from("xattr")+"; on is dir before 2.3")
		}
	}
}

// together are the facts of all of its files.
func (l *Layout) together(places []Place, data Place, v fact.Values) {
	unsynced, elsewhere, cache := []string{}, []string{}, []string{}
	for _, p := range places {
		switch {
		case p.Kind == datafiles.Temp:
		case p.Dataset == "":
			elsewhere = append(elsewhere, p.Path)
		case p.Properties["sync"].Value == "disabled" && !slices.Contains(unsynced, p.Dataset):
			unsynced = append(unsynced, p.Dataset)
		}
	}
	v["instance.zfs_unsynced"] = fact.Known(unsynced, "zfs get sync")
	v["instance.zfs_elsewhere"] = fact.Known(elsewhere, "mounts below its directories")
	name, _, _ := strings.Cut(data.Dataset, "/")
	at := slices.IndexFunc(l.Pools, func(p zfs.Pool) bool { return p.Name == name })
	if at < 0 {
		return
	}
	for _, d := range l.Pools[at].Vdevs {
		if d.Role == zfs.RoleCache {
			cache = append(cache, d.Paths()...)
		}
	}
	v["instance.zfs_l2arc"] = fact.Known(cache, "zpool status -P "+name)
}

// from says where a property of a place was read, and where it is set.
func (p Place) from(property string) string {
	return "zfs get " + property + " " + p.Dataset + ", " + p.Properties[property].Source
}

func (p Place) recordsize(otherwise fact.Value) fact.Value {
	n, err := strconv.ParseInt(p.Properties["recordsize"].Value, 10, 64)
	if err != nil {
		return otherwise
	}
	return fact.Known(n, p.from("recordsize"))
}
