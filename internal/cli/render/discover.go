package render

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/inspect"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// Discovery prints what runs on a host and what its kernel can hold.
func Discovery(out io.Writer, d *inspect.Discovery) {
	f := d.Facts
	Printf(out, "%s: kernel %s, %d CPUs in %d NUMA node(s), %s of memory, %s of swap\n\n",
		f.Hostname, f.Kernel.Text, len(f.CPUs), len(f.Nodes), policy.Bytes(f.MemTotal).Human(),
		policy.Bytes(f.SwapTotal).Human())
	printCapabilities(out, d.Capabilities)
	w := newTable(out, "cgroup hierarchy", "version", "controllers", "mounted at")
	for _, h := range f.Hierarchies {
		where := h.Mount
		if h.ReadOnly {
			where += " (read-only)"
		}
		Printf(w, "%s\tv%d\t%s\t%s\n", h.ID, h.Version, dash(strings.Join(controllerNames(h), " ")), where)
	}
	w.flush()
	printNotMounted(out, f)
	w = newTable(out, "disk", "number", "kind", "size", "rotates", "scheduler", "on")
	for _, dev := range f.Devices {
		on := cmp.Or(dev.Backing, strings.Join(dev.Slaves, " "))
		Printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			dev.Name, dev.Number, dev.Kind, policy.Bytes(dev.Size).Human(), yesNo(dev.Rotational), dash(dev.Scheduler),
			dash(on))
	}
	w.flush()
	printInstances(out, d.Instances)
}

// controllerNames are the controllers of a hierarchy as its version calls them.
func controllerNames(h host.Hierarchy) []string {
	if h.Version == 1 {
		return h.Controllers
	}
	names := slices.Clone(h.Controllers)
	for i, name := range names {
		names[i] = host.V2Name(name)
	}
	return names
}

// printNotMounted names the controllers that bulkhead could use and nothing can, with the command that changes it.
// Where cgroup2 governs the CPU, it counts CPU time and freezes without controllers of their own.
func printNotMounted(out io.Writer, f *host.Facts) {
	used := []string{"cpu", "cpuset", "memory", "blkio", "pids", "hugetlb"}
	if h, ok := f.HierarchyOf("cpu"); !ok || h.Version == 1 {
		used = append(used, "cpuacct", "freezer")
	}
	if _, ok := f.Unified(); !ok || f.BlindedBy != "" || f.Kernel.Major > 0 && f.Kernel.Major < 5 {
		used = append(used, "net_cls") // tells packets apart where programs on cgroup2 directories cannot
	}
	some := false
	for _, c := range f.Controllers {
		if c.Hierarchy == "" && c.Hint != "" && slices.Contains(used, c.Name) {
			Printf(out, "%s is not mounted; to have it: %s\n", c.Name, c.Hint)
			some = true
		}
	}
	if some {
		Println(out)
	}
}

// printCapabilities prints what this kernel can hold and by what.
func printCapabilities(out io.Writer, all []knob.Capability) {
	w := newTable(out, "limit", "held here", "by", "remark")
	for _, c := range all {
		by := strings.Join(c.Files, " ")
		if by != "" && c.Hierarchy != "" {
			by += " (" + c.Hierarchy + ")"
		}
		remark := c.Reason
		if c.Verdict != knob.Yes && c.Instead != "" {
			remark = strings.TrimSuffix(remark, ".") + "; instead: " + c.Instead
		}
		Printf(w, "%s\t%s\t%s\t%s\n", c.Key, c.Verdict, dash(by), remark)
	}
	w.flush()
}

func printInstances(out io.Writer, all []engine.Instance) {
	if len(all) == 0 {
		Printf(out, "no database server that bulkhead knows runs here now (it knows %s)\n",
			strings.Join(recognise.Known(), ", "))
		return
	}
	helpers := false
	w := newTable(out, "instance", "engine", "version", "pid", "user", "port")
	for _, i := range all {
		name := i.Engine
		if i.Flavor != "" {
			name += "/" + i.Flavor
		}
		Printf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", i.Name(), name, dash(i.Version), i.Main.PID, i.User, dashZero(i.Port))
	}
	w.flush()
	for _, i := range all {
		Println(out, i.Name())
		for _, line := range [][2]string{{"data", i.DataDir}, {"socket", i.Socket}, {"configuration", i.Config},
			{"processes", parts(i)}, {"evidence", strings.Join(i.Evidence, "; ")}} {
			if line[1] != "" {
				Printf(out, "  %-13s  %s\n", line[0], line[1])
			}
		}
		if i.Container {
			Println(out, "  runs in a container, and is left to it")
		}
		helpers = helpers || len(i.Helpers) > 0
	}
	if !helpers {
		return
	}
	Println(out)
	w = newTable(out, "helper", "pid", "program", "serves", "known by", "its own limit")
	for _, i := range all {
		for _, h := range i.Helpers {
			serves := i.Name()
			if !h.Sure {
				serves = "perhaps " + serves
			}
			Printf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", h.Kind, h.ID.PID, h.Tool, serves, h.How,
				dash(cmp.Or(h.Rate.Given, h.Rate.Option)))
		}
	}
	w.flush()
}

// parts counts the processes of each part: "main 1, backends 12".
func parts(i engine.Instance) string {
	count := map[string]int{}
	var order []string
	for _, m := range i.Members {
		if count[m.Part] == 0 {
			order = append(order, m.Part)
		}
		count[m.Part]++
	}
	words := make([]string, len(order))
	for n, part := range order {
		words[n] = fmt.Sprintf("%s %d", part, count[part])
	}
	return strings.Join(words, ", ")
}
