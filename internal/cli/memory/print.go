package memory

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/host"
	"bulkhead/internal/memory"
)

// overview is what the verb says without an instance.
type overview struct {
	Machine   host.Memory      `json:"machine"`
	Instances []memory.Summary `json:"instances"`
	Huge      sizing           `json:"huge_pages"`
	Warnings  []string         `json:"warnings"`
}

// detail is what it says of one.
type detail struct {
	Machine   host.Memory      `json:"machine"`
	Instance  *memory.Instance `json:"instance"`
	Said      []memory.Said    `json:"settings"`
	Huge      want             `json:"huge_pages"`
	Imbalance float64          `json:"imbalance"` // of nodes: 1 is even; 0 where the kernel does not tell
	Warnings  []string         `json:"warnings"`
}

func printOverview(out io.Writer, o *overview) {
	if len(o.Instances) == 0 {
		render.Println(out, "no database server that bulkhead knows runs here now")
		render.Println(out)
	} else {
		rows := [][]string{{"INSTANCE", "SHARED", "PRIVATE", "HUGE", "SWAP", "PAGE TABLES", "THP", "PROCESSES"}}
		for _, s := range o.Instances {
			rows = append(rows, []string{s.Name, human(s.Shared), human(s.Private), human(s.Pool), human(s.Swap),
				human(s.PageTables), s.THP, strconv.Itoa(s.Processes)})
		}
		render.Table(out, rows)
		for _, s := range o.Instances {
			if len(s.Counted) > 0 {
				render.Printf(out, "%s maps shared memory that counts for %s\n\n", s.Name,
					strings.Join(s.Counted, ", "))
			}
		}
	}
	printSizing(out, o.Huge)
	printMachine(out, o.Machine)
	if len(o.Machine.Nodes) > 1 {
		groups := [][]string{{"INSTANCE"}}
		for _, n := range o.Machine.Nodes {
			groups[0] = append(groups[0], fmt.Sprintf("NODE %d", n.ID))
		}
		for _, s := range o.Instances {
			if s.Group == nil {
				continue
			}
			row := []string{s.Name}
			for _, other := range o.Instances {
				if other.GroupOf == s.Name {
					row[0] += ", " + other.Name
				}
			}
			for _, n := range o.Machine.Nodes {
				row = append(row, human(s.Group[n.ID]))
			}
			groups = append(groups, row)
		}
		if len(groups) > 1 {
			render.Println(out, "Memory of their control groups by node:")
			render.Table(out, groups)
		}
	}
	if len(o.Instances) > 0 {
		render.Printf(out, "`bulkhead memory %s` reads its maps: nodes, page sizes, what huge pages would save\n",
			o.Instances[0].Name)
	}
	for _, w := range o.Warnings {
		render.Printf(out, "warning: %s\n", w)
	}
}

func printMachine(out io.Writer, m host.Memory) {
	render.Table(out, [][]string{
		{"MEMORY OF THE HOST", "AVAILABLE", "SWAP USED", "PAGE TABLES", "TRANSPARENT HUGE PAGES"},
		{human(m.Total), human(m.Available), human(m.SwapTotal - m.SwapFree), human(m.PageTables), m.THP},
	})
	if len(m.Pools) > 0 {
		pools := [][]string{{"POOL OF PAGES OF", "PAGES", "FREE", "RESERVED", "SURPLUS", "TAKES"}}
		for _, p := range m.Pools {
			pools = append(pools, []string{human(p.Size), count(p.Pages), count(p.Free), count(p.Reserved),
				count(p.Surplus), human(p.Pages * p.Size)})
		}
		render.Table(out, pools)
	}
	nodes := [][]string{{"NODE", "CPUS", "TOTAL", "FREE", "", "DISTANCES"}}
	for _, n := range m.Nodes {
		distances := []string{}
		for _, d := range n.Distances {
			distances = append(distances, strconv.Itoa(d))
		}
		nodes = append(nodes, []string{strconv.Itoa(n.ID), n.CPUs, human(n.Total), human(n.Free),
			percent(n.Free, n.Total), strings.Join(distances, " ")})
	}
	render.Table(out, nodes)
}

func printDetail(out io.Writer, d *detail) {
	i := d.Instance
	render.Printf(out, "%s, process %d: %s in %s\n\n", i.Name, i.PID, sizeOf(i.All()),
		render.Count(i.Processes, "process", "processes"))
	pages := [][]string{{"PAGES OF", "SHARED", "PRIVATE", "TRANSPARENT HUGE", "MAPPED"}}
	for _, p := range i.Pages {
		pages = append(pages, []string{human(p.Size), human(p.Shared), human(p.Private), human(p.Transparent),
			human(p.Mapped)})
	}
	render.Table(out, pages)
	render.Printf(out, "programs, files  %s\n", sizeOf(i.Files))
	render.Printf(out, "swapped out      %s\n", sizeOf(i.Swap))
	tables := sizeOf(i.PageTables)
	if i.SavedTables > 0 {
		tables += fmt.Sprintf("; about %s if it were in pages of 2 MiB", sizeOf(i.PageTables-i.SavedTables))
	}
	render.Printf(out, "page tables      %s\n", tables)
	render.Printf(out, "huge pages       %s\n", hugePages(i))
	for _, line := range d.Huge.lines() {
		render.Printf(out, "would take       %s\n", line)
	}
	render.Printf(out, "transparent      %s\n", transparent(i))
	for _, s := range d.Said {
		render.Printf(out, "%-16s %s (%s)\n", s.Setting, s.Value, s.From)
	}
	for _, p := range i.Policies {
		render.Printf(out, "policy           %s: %s\n", p.Policy, sizeOf(p.Bytes))
	}
	render.Println(out)
	if len(i.Nodes) > 0 {
		printNodes(out, d)
	}
	for _, w := range d.Warnings {
		render.Printf(out, "warning: %s\n", w)
	}
}

// hugePages says whether pages of a pool are really used.
func hugePages(i *memory.Instance) string {
	said := []string{}
	for _, p := range i.Pages {
		if p.Mapped > 0 {
			said = append(said, fmt.Sprintf("%s touched of %s mapped, in pages of %s", sizeOf(p.Shared+p.Private),
				sizeOf(p.Mapped), sizeOf(p.Size)))
		}
	}
	if len(said) == 0 {
		return "none of a pool: its memory is in the usual pages"
	}
	return "really used: " + strings.Join(said, "; ")
}

func transparent(i *memory.Instance) string {
	used := int64(0)
	for _, p := range i.Pages {
		used += p.Transparent
	}
	how := i.THP + " (host)"
	if i.THP == "off" {
		how = "off: the process switched them off for itself"
	}
	return fmt.Sprintf("%s in use; %s", sizeOf(used), how)
}

// bar is how many letters the longest bar has.
const bar = 40

// letters draw the page sizes, smallest first.
var letters = []string{"#", "=", "+", "%"}

// printNodes prints the nodes with a picture: a bar for each, a letter for each page size.
func printNodes(out io.Writer, d *detail) {
	most := int64(1)
	sizes := map[int64]bool{}
	for _, u := range d.Instance.Nodes {
		most = max(most, u.Bytes)
		for size := range u.BySize {
			sizes[size] = true
		}
	}
	order := slices.Sorted(maps.Keys(sizes))
	rows := [][]string{{"NODE", "MEMORY", "SHARE", ""}}
	for _, u := range d.Instance.Nodes {
		line := ""
		for at, size := range order {
			line += strings.Repeat(letters[min(at, len(letters)-1)], int(u.BySize[size]*bar/most))
		}
		rows = append(rows, []string{strconv.Itoa(u.Node), human(u.Bytes), percent(u.Bytes, d.Instance.All()), line})
	}
	render.Table(out, rows)
	legend := []string{}
	for at, size := range order {
		legend = append(legend, letters[min(at, len(letters)-1)]+" pages of "+sizeOf(size))
	}
	render.Println(out, strings.Join(legend, ", "))
	if len(d.Machine.Nodes) > 1 {
		render.Printf(out, "the fullest node has %.2f times an even share\n", d.Imbalance)
		printMachine(out, d.Machine)
	}
	render.Println(out)
	dirty := [][]string{{"PROCESS", "PART", "ON NODES", "DIRTY", "ACTIVE", "MAPPED"}}
	const shown = 10
	for _, p := range d.Instance.Members[:min(shown, len(d.Instance.Members))] {
		nodes := []string{}
		for _, n := range slices.Sorted(maps.Keys(p.Nodes)) {
			nodes = append(nodes, fmt.Sprintf("%d: %s", n, sizeOf(p.Nodes[n])))
		}
		dirty = append(dirty, []string{strconv.Itoa(p.PID), p.Part, strings.Join(nodes, ", "), human(p.Dirty),
			human(p.Active), human(p.Mapped)})
	}
	render.Table(out, dirty)
	if more := len(d.Instance.Members) - shown; more > 0 {
		render.Printf(out, "and %s; --json lists all\n\n", render.Count(more, "process more", "processes more"))
	}
}
