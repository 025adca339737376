package bench

import (
	"errors"
	"fmt"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
)

// meteredGroups are the groups that the report shows, in its order.
var meteredGroups = []string{groupDatabase, groupCPU, groupMemory, groupDisk}

// usage is what a group used over a phase. A negative figure was not there to be read.
type usage struct {
	CPU      float64 `json:"cpu_cores"`
	Written  float64 `json:"written_bytes_per_second"` // what reached the devices
	Peak     int64   `json:"memory_peak_bytes"`        // most memory at one moment since the group was made
	OOMKills int64   `json:"oom_kills"`                // since the group was made, which was for this phase
}

// meter reads what groups have used from the kernel's own counters.
type meter struct {
	tree        *cgroup.Tree
	hierarchies []host.Hierarchy
}

func newMeter(f *host.Facts) *meter {
	return &meter{tree: cgroup.New(f.Hierarchies), hierarchies: f.Hierarchies}
}

// close lets the hierarchies go.
func (m *meter) close() error { return m.tree.Close() }

// read looks at every metered group. A group that is nowhere is an error: the policy was not applied.
func (m *meter) read() (map[string]cgroup.Usage, error) {
	all := make(map[string]cgroup.Usage, len(meteredGroups))
	for _, group := range meteredGroups {
		u, err := m.group(group)
		if err != nil {
			return nil, fmt.Errorf("read what group %q used: %w", group, err)
		}
		all[group] = u
	}
	return all, nil
}

// group puts together what every hierarchy says about one group.
func (m *meter) group(group string) (cgroup.Usage, error) {
	var whole cgroup.Usage
	found := false
	for _, h := range m.hierarchies {
		part, err := m.tree.Stat(cgroup.Dir{Hierarchy: h.ID, Path: "/" + demoRoot + "/" + group})
		if errors.Is(err, cgroup.ErrGone) {
			continue // no knob of the group needs this hierarchy
		}
		if err != nil {
			return cgroup.Usage{}, err
		}
		found = true
		whole.Merge(part)
	}
	if !found {
		return cgroup.Usage{}, errors.New("it has no directory in any hierarchy")
	}
	return whole, nil
}

// between is what the groups used from one reading to the next. Peaks and kills are since the group was made.
func between(before, after map[string]cgroup.Usage, elapsed time.Duration) map[string]usage {
	all := make(map[string]usage, len(after))
	for group, a := range after {
		b := before[group]
		u := usage{CPU: -1, Written: -1, Peak: -1, OOMKills: -1}
		if from, to := b.CPU.Total, a.CPU.Total; from != nil && to != nil {
			u.CPU = float64(*to-*from) / float64(elapsed.Microseconds())
		}
		// A device is listed only after its first operation.
		if written := writtenBytes(a) - writtenBytes(b); a.IO != nil {
			u.Written = float64(written) / elapsed.Seconds()
		}
		if a.Memory.Peak != nil {
			u.Peak = *a.Memory.Peak
		}
		if a.Memory.OOMKills != nil {
			u.OOMKills = *a.Memory.OOMKills
		}
		all[group] = u
	}
	return all
}

func writtenBytes(u cgroup.Usage) int64 {
	var n int64
	for _, d := range u.IO {
		n += d.WrittenBytes
	}
	return n
}

// overRounds puts the usage of one group in several rounds together: medians of rates, the largest
// peak, and all kills.
func overRounds(samples []sample, group string) usage {
	u := usage{Peak: -1, OOMKills: -1}
	var cpu, written []float64
	for _, s := range samples {
		v := s.usage[group]
		cpu, written = append(cpu, v.CPU), append(written, v.Written)
		u.Peak = max(u.Peak, v.Peak)
		if v.OOMKills >= 0 {
			u.OOMKills = max(u.OOMKills, 0) + v.OOMKills
		}
	}
	u.CPU, u.Written = median(cpu), median(written)
	return u
}
