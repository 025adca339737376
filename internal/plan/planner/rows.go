package planner

import (
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/knob"
	"bulkhead/internal/linux/idset"
)

// Kernel files that a plan must know by name, because a rule binds directories to each other and not
// only the files of one. Everything that concerns one directory alone is in the knob table.
const (
	fileQuota     = "cpu.cfs_quota_us"       // v1: a child's quota/period must not exceed its parent's
	filePeriod    = "cpu.cfs_period_us"      //
	fileBurst     = "cpu.cfs_burst_us"       //
	fileRTRuntime = "cpu.rt_runtime_us"      // v1: the sum of the children must not exceed the parent's
	fileSubtree   = "cgroup.subtree_control" // v2
)

// quota is a v1 CPU limit: microseconds in each period of so many microseconds.
type quota struct{ quota, period int64 }

// ratio is what the kernel compares (to_ratio of kernel/sched/core.c): cores in 1/2^20.
func (q quota) ratio() int64 { return (q.quota << 20) / max(q.period, 1) }

func (q quota) above(o quota) bool { return q.ratio() > o.ratio() }

func (q quota) cores() string {
	return strconv.FormatFloat(float64(q.quota)/float64(max(q.period, 1)), 'f', -1, 64)
}

// quotaOf reads the v1 CPU limit out of the values of a directory; ok is false when there is none.
func quotaOf(values []value) (q quota, ok bool) {
	q = quota{quota: -1, period: 100_000}
	for _, v := range values {
		switch v.file {
		case fileQuota:
			q.quota = number(v.text)
		case filePeriod:
			q.period = number(v.text)
		}
	}
	return q, q.quota >= 0
}

func isBandwidth(r *knob.Row) bool {
	return slices.Contains([]string{fileQuota, filePeriod, fileBurst}, r.File)
}

// isWide says whether the row is a v2 cpuset, whose empty list stands for all that the directory above has.
// The kernel takes an empty list only while no process is inside (ENOSPC, validate_change).
func isWide(r *knob.Row) bool { return r.Controller == "cpuset" && r.Version == 2 }

// number reads a kernel number; -1, which is no limit everywhere it can occur, when it is none.
func number(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// idSet reads a cpuset list; a text that is none is the empty set.
func idSet(text string) idset.Set {
	set, err := idset.Parse(text)
	if err != nil {
		return nil
	}
	return set
}
