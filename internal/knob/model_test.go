package knob

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/knob/format"
	"bulkhead/internal/linux/idset"
)

// model is a directory of a cgroup tree with the kernel's checks between files, and between a
// directory and those above and below it. The rules are those measured on 6.18 (v1) and those of the
// kernel's source (v2).
type model struct {
	version  int
	parent   *model
	children []*model
	files    map[string]string
	// burstBug: cpu.max takes the burst for nanoseconds, as before kernel 6.10.
	burstBug bool
}

func newModel(version int, parent *model) *model {
	m := &model{version: version, parent: parent, files: map[string]string{}}
	for _, r := range table {
		if r.Version == version && !r.PerSize && !r.PerDevice {
			m.files[r.File] = r.Default
		}
	}
	if parent != nil {
		parent.children = append(parent.children, m)
	}
	return m
}

func (m *model) number(file string) int64 {
	n, err := strconv.ParseInt(m.files[file], 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%s holds %q", file, m.files[file]))
	}
	return n
}

// write does what the kernel would with a write, or gives its error.
func (m *model) write(file, value string) error {
	was := m.files[file]
	m.files[file] = value
	err := m.check(file)
	if err != nil {
		m.files[file] = was
		return fmt.Errorf("write %q to %s: %w", value, file, err)
	}
	m.sideEffects(file, was)
	return nil
}

func (m *model) sideEffects(file, was string) {
	switch {
	case file == "cpu.idle" && was != m.files[file]:
		weight := map[bool]string{true: "3", false: "1024"}
		if m.version == 2 {
			weight = map[bool]string{true: "0", false: "100"}
		}
		m.files[map[int]string{1: "cpu.shares", 2: "cpu.weight"}[m.version]] = weight[m.files[file] == "1"]
	case file == "cpu.max" && m.burstBug:
		m.files["cpu.max.burst"] = strconv.FormatInt(m.number("cpu.max.burst")/1000, 10)
	}
}

var (
	errInvalid = fmt.Errorf("invalid argument")
	errBusy    = fmt.Errorf("device or resource busy")
)

func (m *model) check(file string) error {
	switch file {
	case "cpu.shares", "cpu.weight":
		if m.files["cpu.idle"] == "1" {
			return errInvalid
		}
	case "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us":
		return m.checkBandwidth(format.Bandwidth{Quota: m.number("cpu.cfs_quota_us"),
			Period: m.number("cpu.cfs_period_us")},
			m.number("cpu.cfs_burst_us"))
	case "cpu.max", "cpu.max.burst":
		b, ok := format.CPUMax{}.Value(m.files["cpu.max"])
		if !ok {
			return errInvalid
		}
		burst := m.number("cpu.max.burst")
		if file == "cpu.max" && m.burstBug {
			burst /= 1000
		}
		return m.checkBandwidth(b, burst)
	case "memory.limit_in_bytes", "memory.memsw.limit_in_bytes":
		limit, both := m.number("memory.limit_in_bytes"), m.number("memory.memsw.limit_in_bytes")
		if both >= 0 && (limit < 0 || limit > both) {
			return errInvalid
		}
	case "cpuset.cpus", "cpuset.mems":
		return m.checkSet(file)
	}
	return nil
}

// checkBandwidth is tg_set_cfs_bandwidth and, for v1, tg_cfs_schedulable_down over the whole tree.
func (m *model) checkBandwidth(b format.Bandwidth, burst int64) error {
	switch {
	case b.Period < minPeriod || b.Period > maxPeriod:
		return errInvalid
	case !b.Unlimited() && (b.Quota < minQuota || burst > b.Quota):
		return errInvalid
	case m.version == 1 && !m.root().schedulable(format.Bandwidth{Quota: -1, Period: 1}):
		return errInvalid
	}
	return nil
}

func (m *model) root() *model {
	for m.parent != nil {
		m = m.parent
	}
	return m
}

func (m *model) schedulable(above format.Bandwidth) bool {
	own := format.Bandwidth{Quota: m.number("cpu.cfs_quota_us"), Period: m.number("cpu.cfs_period_us")}
	switch {
	case own.Unlimited():
		own = above
	case !above.Unlimited() && ratio(own) > ratio(above):
		return false
	}
	return !slices.ContainsFunc(m.children, func(c *model) bool { return !c.schedulable(own) })
}

// ratio is the kernel's to_ratio: 2^20 times the share of a CPU, rounded down.
func ratio(b format.Bandwidth) int64 { return b.Quota << 20 / b.Period }

// checkSet is the subset rule of a v1 cpuset: EACCES above, EBUSY below.
func (m *model) checkSet(file string) error {
	set := func(m *model) idset.Set {
		ids, err := idset.Parse(m.files[file])
		if err != nil {
			panic(err)
		}
		return ids
	}
	if m.parent != nil && len(set(m).Minus(set(m.parent))) > 0 {
		return errInvalid
	}
	for _, c := range m.children {
		if len(set(c).Minus(set(m))) > 0 {
			return errBusy
		}
	}
	return nil
}

// each gives the directories of a tree, parents first.
func (m *model) each() []*model {
	all := []*model{m}
	for _, c := range m.children {
		all = append(all, c.each()...)
	}
	return all
}

// state is every file of a directory as text, as the rows parse it.
func (m *model) state() string {
	var lines []string
	for _, r := range table {
		if value, ok := m.files[r.File]; ok && r.Version == m.version {
			lines = append(lines, r.File+"="+r.Parse(value))
		}
	}
	return strings.Join(lines, "\n")
}

// changes are the changes that lead from one state of a directory to another.
func (m *model) changes(to map[string]string) []Change {
	var changes []Change
	for _, r := range table {
		if target, ok := to[r.File]; ok && r.Version == m.version {
			changes = append(changes, Change{Row: r, From: r.Parse(m.files[r.File]), To: target})
		}
	}
	return changes
}
