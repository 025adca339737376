package gather

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
)

func instanceFacts(h *host.Host, d *disks.Disks) []fact.Object {
	var list []fact.Object
	var root *blockdev.Layer
	for _, m := range d.Storage.Mounts() {
		if m.Point == "/" {
			root = d.Storage.On(m)
		}
	}
	for _, db := range d.Databases {
		inst := db.Instance
		v := fact.Values{}
		evidence := "process " + strconv.Itoa(inst.Main.PID)
		v["instance.engine"] = fact.Known(cmp.Or(inst.Flavor, inst.Engine), evidence)
		v["instance.version"] = fact.Unknown("it shows no version without being asked")
		if inst.Version != "" {
			v["instance.version"] = fact.Known(inst.Version, evidence+" or its data directory")
		}
		v["instance.port"] = fact.Unknown("it listens on no port")
		if inst.Port != 0 {
			v["instance.port"] = fact.Known(int64(inst.Port), "its listening socket")
		}
		processFacts(h, inst.Main.PID, v)
		placeFacts(h, db, root, v)
		settingFacts(h, inst, v)
		list = append(list, fact.Object{Name: inst.Name(), Values: v})
	}
	return list
}

// processFacts are those of the main process.
func processFacts(h *host.Host, pid int, v fact.Values) {
	dir := path.Join("/proc", strconv.Itoa(pid))
	v["instance.oom_score_adj"] = number(h, path.Join(dir, "oom_score_adj"))
	status, err := h.Root.ReadText(path.Join(dir, "status"))
	v["instance.swapped"], v["instance.thp_off"] = because(err), because(err)
	if err == nil {
		v["instance.swapped"] = fact.Unknown("this kernel does not tell VmSwap")
		v["instance.thp_off"] = fact.Unknown("this kernel does not tell THP_enabled")
	}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case name == "VmSwap" && len(fields) == 2:
			if n, err := procfs.ParseAmount(value); err == nil {
				v["instance.swapped"] = fact.Known(n, path.Join(dir, "status")+" VmSwap")
			}
		case name == "THP_enabled" && len(fields) == 1:
			v["instance.thp_off"] = fact.Known(fields[0] == "0", path.Join(dir, "status")+" THP_enabled")
		}
	}
	v["instance.open_files"] = fact.Unknown("its limits do not name it")
	limits, err := h.Root.ReadText(path.Join(dir, "limits"))
	if err != nil {
		v["instance.open_files"] = because(err)
	}
	for line := range strings.Lines(limits) {
		rest, found := strings.CutPrefix(line, "Max open files")
		fields := strings.Fields(rest)
		if !found || len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if fields[0] == "unlimited" {
			n, err = 1<<40, nil
		}
		if err == nil {
			v["instance.open_files"] = fact.Known(n, path.Join(dir, "limits")+" Max open files")
		}
	}
}

// placeFacts are those of what its data lies on.
func placeFacts(h *host.Host, db disks.DatabaseFiles, root *blockdev.Layer, v fact.Values) {
	none := fact.Unknown("where its data lies was not found")
	v["instance.data_type"], v["instance.data_read_ahead"], v["instance.data_on_root"] = none, none, none
	i := slices.IndexFunc(db.Files, func(f disks.PlacedFiles) bool {
		return f.Kind == datafiles.Data && f.Place.Layer != nil
	})
	if i < 0 {
		return
	}
	data := db.Files[i].Place
	v["instance.data_type"] = fact.Known(data.Layer.Type, "the mount of "+data.Path)
	v["instance.data_read_ahead"] = readAhead(h, data.Layer)
	if root == nil {
		return
	}
	shared := false
	for _, disk := range data.Layer.Drives() {
		shared = shared || slices.Contains(root.Drives(), disk)
	}
	v["instance.data_on_root"] = fact.Known(shared, "disks below "+data.Path+" and /")
}
