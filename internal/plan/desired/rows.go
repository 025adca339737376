package desired

import (
	"slices"
	"strconv"

	"bulkhead/internal/knob"
)

// Kernel files that a plan must know by name, because a rule binds directories to each other and not
// only the files of one. Everything that concerns one directory alone is in the knob table.
const (
	FileQuota     = "cpu.cfs_quota_us"       // v1: a child's quota/period must not exceed its parent's
	FilePeriod    = "cpu.cfs_period_us"      //
	fileBurst     = "cpu.cfs_burst_us"       //
	FileRTRuntime = "cpu.rt_runtime_us"      // v1: the sum of the children must not exceed the parent's
	FileSubtree   = "cgroup.subtree_control" // v2
)

// Quota is a v1 CPU limit: microseconds in each period of so many microseconds.
type Quota struct{ Quota, Period int64 }

// ratio is what the kernel compares (to_ratio of kernel/sched/core.c): cores in 1/2^20.
func (q Quota) ratio() int64 { return (q.Quota << 20) / max(q.Period, 1) }

// Above says whether it lets more run than another: the kernel refuses that of a child.
func (q Quota) Above(o Quota) bool { return q.ratio() > o.ratio() }

func (q Quota) cores() string {
	return strconv.FormatFloat(float64(q.Quota)/float64(max(q.Period, 1)), 'f', -1, 64)
}

// QuotaOf reads the v1 CPU limit out of the values of a directory; ok is false when there is none.
func QuotaOf(values []Value) (q Quota, ok bool) {
	q = Quota{Quota: -1, Period: 100_000}
	for _, v := range values {
		switch v.File {
		case FileQuota:
			q.Quota = Number(v.Text)
		case FilePeriod:
			q.Period = Number(v.Text)
		}
	}
	return q, q.Quota >= 0
}

// IsBandwidth says whether the row is a part of the CPU limit of cgroup v1.
func IsBandwidth(r *knob.Row) bool {
	return slices.Contains([]string{FileQuota, FilePeriod, fileBurst}, r.File)
}

// IsWide says whether the row is a v2 cpuset, whose empty list stands for all that the directory above has.
// The kernel takes an empty list only while no process is inside (ENOSPC, validate_change).
func IsWide(r *knob.Row) bool { return r.Controller == "cpuset" && r.Version == 2 }
