package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"bulkhead/internal/control"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

func (a *app) discoverCmd() *cobra.Command {
	var asPolicy bool
	var measure string
	c := &cobra.Command{
		Use:   "discover [disks]",
		Short: "the databases here, and what this kernel can hold; disks: what their files lie on",
		Example: `  bulkhead discover         engines, helpers, disks and what can be limited
  bulkhead discover disks   filesystems down to the disks, and which files of each database land where
  bulkhead discover disks --measure /data
                            what the disks below a path, or a device, can do: a short load, after saying what it does`,
		ValidArgs: []string{"disks"},
		Args:      discoverArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case asPolicy && len(args) > 0:
				return &usageError{command: "bulkhead discover", err: errors.New("--as-policy prints a whole policy: leave disks out")}
			case measure != "" && len(args) == 0:
				return &usageError{command: "bulkhead discover", err: errors.New("--measure is for disks: bulkhead discover disks --measure " + measure)}
			}
			c, err := a.look()
			if err != nil {
				return err
			}
			defer c.Close()
			switch {
			case measure != "":
				return a.measureDisks(cmd.Context(), c, measure)
			case len(args) > 0:
				return a.discoverDisks(c)
			}
			d, err := c.Discover()
			switch {
			case err != nil:
				return err
			case asPolicy:
				_, err = io.WriteString(a.out, engine.Starter(d.Instances))
				return err
			case a.json:
				return a.printJSON(discoveryView(d))
			}
			a.printDiscovery(d)
			return nil
		},
	}
	c.Flags().StringVar(&measure, "measure", "", "measure what the disks below this path, or this device, can do, in 8 seconds and 2 GiB at most")
	c.Flags().BoolVar(&asPolicy, "as-policy", false, "print a policy to start from, without limits")
	return c
}

// discoverArgs takes nothing or the one thing that can be looked at alone.
func discoverArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 && args[0] != "disks" {
		return fmt.Errorf("%q is nothing that discover knows; disks is", args[0])
	}
	return noArguments(nil, args[min(1, len(args)):])
}

func (a *app) printDiscovery(d *control.Discovery) {
	f := d.Facts
	fmt.Fprintf(a.out, "%s: kernel %s, %d CPUs in %d NUMA node(s), %s of memory, %s of swap\n\n",
		f.Hostname, f.Kernel.Text, len(f.CPUs), len(f.Nodes), policy.Bytes(f.MemTotal).Human(), policy.Bytes(f.SwapTotal).Human())
	a.printCapabilities(d.Capabilities)
	w := a.table("cgroup hierarchy", "version", "controllers", "mounted at")
	for _, h := range f.Hierarchies {
		where := h.Mount
		if h.ReadOnly {
			where += " (read-only)"
		}
		fmt.Fprintf(w, "%s\tv%d\t%s\t%s\n", h.ID, h.Version, dash(strings.Join(controllerNames(h), " ")), where)
	}
	flush(w)
	a.printNotMounted(f)
	w = a.table("disk", "number", "kind", "size", "rotates", "scheduler", "on")
	for _, dev := range f.Devices {
		on := cmp.Or(dev.Backing, strings.Join(dev.Slaves, " "))
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			dev.Name, dev.Number, dev.Kind, policy.Bytes(dev.Size).Human(), yesNo(dev.Rotational), dash(dev.Scheduler), dash(on))
	}
	flush(w)
	a.printInstances(d.Instances)
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
func (a *app) printNotMounted(f *host.Facts) {
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
			fmt.Fprintf(a.out, "%s is not mounted; to have it: %s\n", c.Name, c.Hint)
			some = true
		}
	}
	if some {
		fmt.Fprintln(a.out)
	}
}

// printCapabilities prints what this kernel can hold and by what.
func (a *app) printCapabilities(all []knob.Capability) {
	w := a.table("limit", "held here", "by", "remark")
	for _, c := range all {
		by := strings.Join(c.Files, " ")
		if by != "" && c.Hierarchy != "" {
			by += " (" + c.Hierarchy + ")"
		}
		remark := c.Reason
		if c.Verdict != knob.Yes && c.Instead != "" {
			remark = strings.TrimSuffix(remark, ".") + "; instead: " + c.Instead
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Key, c.Verdict, dash(by), remark)
	}
	flush(w)
}

func (a *app) printInstances(all []engine.Instance) {
	if len(all) == 0 {
		fmt.Fprintln(a.out, "no database server that bulkhead knows runs here now (it knows "+strings.Join(engine.Known(), ", ")+")")
		return
	}
	helpers := false
	w := a.table("instance", "engine", "version", "pid", "user", "port", "socket", "data directory", "config")
	for _, i := range all {
		name := i.Engine
		if i.Flavor != "" {
			name += "/" + i.Flavor
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", i.Name(), name, dash(i.Version), i.Main.PID, i.User, dashZero(i.Port), dash(i.Socket), dash(i.DataDir), dash(i.Config))
	}
	flush(w)
	for _, i := range all {
		fmt.Fprintf(a.out, "%s: recognised by %s; processes: %s\n", i.Name(), strings.Join(i.Evidence, ", "), parts(i))
		if i.Container {
			fmt.Fprintf(a.out, "%s: runs in a container, and is left to it\n", i.Name())
		}
		helpers = helpers || len(i.Helpers) > 0
	}
	if !helpers {
		return
	}
	fmt.Fprintln(a.out)
	w = a.table("helper", "pid", "program", "serves", "known by", "its own limit")
	for _, i := range all {
		for _, h := range i.Helpers {
			serves := i.Name()
			if !h.Sure {
				serves = "perhaps " + serves
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", h.Kind, h.ID.PID, h.Tool, serves, h.How, dash(cmp.Or(h.Rate.Given, h.Rate.Option)))
		}
	}
	flush(w)
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

// table begins a table with its headings.
func (a *app) table(headings ...string) *tabwriter.Writer {
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(headings, "\t")))
	return w
}

// flush ends a table with an empty line.
func flush(w *tabwriter.Writer) {
	fmt.Fprintln(w)
	_ = w.Flush()
}

func dash(s string) string { return cmp.Or(s, "-") }

func dashZero(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
