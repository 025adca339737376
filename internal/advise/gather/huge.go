package gather

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/advise/gather/hugepages"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// huge fills in what an instance takes of the pool of huge pages.
func (s *server) huge(h *host.Host, machine *host.Facts, inst engine.Instance, found settings.Settings) {
	s.need = hugepages.Of(h, machine, inst, found)
	s.values["instance.huge_wanted"] = fact.Known(s.need.Pages, inputsOf(s.need))
	if s.need.Unknown != "" {
		s.values["instance.huge_wanted"] = fact.Unknown("%s", s.need.Unknown)
	}
}

func inputsOf(n hugepages.Need) string {
	var all []string
	for _, i := range n.Inputs {
		all = append(all, i.String())
	}
	if len(all) == 0 {
		return "it takes none of a pool"
	}
	return strings.Join(all, ", ")
}

// hugeNames are the facts of hugeTogether.
var hugeNames = []string{"host.huge_wanted", "host.huge_missing", "host.huge_plan", "host.huge_known",
	"host.huge_asked", "host.huge_by_node"}

// hugeTogether sizes the pool of huge pages for all instances.
func hugeTogether(h *host.Host, set *fact.Set, list []server) {
	facts, err := h.Facts()
	var m host.Memory
	if err == nil {
		m, err = h.Memory(facts)
	}
	if err == nil && m.HugePage == 0 {
		err = fmt.Errorf("this kernel has no pool of huge pages")
	}
	if err != nil {
		for _, name := range hugeNames {
			set.Host[name] = files.Because(err)
		}
		return
	}
	var needs []hugepages.Need
	var from, asks []string
	for i, s := range list {
		if s.need.Told && s.need.Page == 0 {
			s.need.Page = m.HugePage
		}
		needs = append(needs, s.need)
		if s.need.Told && s.need.Pages > 0 {
			from = append(from, fmt.Sprintf("%s %d", s.name, s.need.Pages))
		}
		if i < len(set.Instances) && wantsHuge(set.Instances[i].Values) {
			asks = append(asks, s.name)
		}
	}
	p := hugepages.Together(needs, m)
	from = append(from, fmt.Sprintf("margin %d", p.Margin), fmt.Sprintf("other programs %d", p.Others))
	parts := strings.Join(from, ", ")
	set.Host["host.huge_wanted"] = fact.Known(p.Pages, parts)
	set.Host["host.huge_missing"] = fact.Known(p.Missing, parts)
	set.Host["host.huge_known"] = fact.Known(true, parts)
	set.Host["host.huge_asked"] = fact.Known(len(asks) > 0,
		strings.Join(append(asks, "settings of the instances"), ", "))
	set.Host["host.huge_by_node"] = fact.Known(len(p.Nodes) > 0, "Mems_allowed_list and numa_maps of the instances")
	set.Host["host.huge_plan"] = fact.Known(p.AtLeast().String(), parts)
	switch {
	case len(p.Unknown) > 0:
		unknown := fact.Unknown("what these take is not known: %s", strings.Join(p.Unknown, ", "))
		set.Host["host.huge_known"], set.Host["host.huge_plan"] = unknown, unknown
	case p.Missing == 0:
		set.Host["host.huge_plan"] = fact.Unknown("the pool is large enough")
	}
}

// wantsHuge says whether an instance insists on huge pages, or has some.
func wantsHuge(v fact.Values) bool {
	switch v.Get("instance.engine").Is {
	case "postgresql":
		return v.Get("instance.huge_pages").Is == "on" || v.Get("instance.huge_pages").Is == "try" &&
			v.Get("instance.huge_used").Is != int64(0)
	case "mysql", "mariadb", "percona":
		return v.Get("instance.large_pages").Is == true
	}
	return false
}

// hugeShm says whether a process may make SysV shared memory in huge pages: can_do_hugetlb_shm() of the kernel's
// fs/hugetlbfs/inode.c.
func hugeShm(h *host.Host, p *procfs.Process) fact.Value {
	const file, ipcLock = "/proc/sys/vm/hugetlb_shm_group", 14 // CAP_IPC_LOCK of linux/capability.h
	from := path.Join("/proc", strconv.Itoa(p.PID), "status")
	who, err := h.Proc.Identity(p.PID)
	if err != nil {
		return files.Because(err)
	}
	if who.Capabilities>>ipcLock&1 == 1 {
		return fact.Known(true, from+" CapEff")
	}
	group, err := h.Root.ReadInt(file)
	if err != nil {
		return files.Because(err)
	}
	return fact.Known(slices.Contains(who.Groups, int(group)), file+", "+from+" Gid, Groups")
}
