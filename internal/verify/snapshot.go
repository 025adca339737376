// Package verify says whether the limits of groups hold. ReadBack compares what was asked with what the kernel's files
// hold. A Prober measures with short loads what the kernel lets a process do under them. It owns the directories that
// the loads run in; the loads themselves are those of package probe.
//
// A Snapshot is read and not changed, so its methods may be used by several goroutines at once. A Prober measures one
// limit after the other.
package verify

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
)

// Snapshot is what limits are compared with: groups and their limits, and what was seen of them at one moment.
type Snapshot struct {
	Facts   *host.Facts
	Tree    *cgroup.Tree // for what is read anew while limits are measured
	Layout  layout.Layout
	Groups  []classify.Group // with their settings, in the order of the policy
	Members []classify.Placement
	// Plan would put right what differs. It names every value that should be held.
	Plan      plan.Plan
	Observed  plan.Observation
	Actuators change.Actuators // compare values
	Network   *plan.Network    // nil when no limit is on an interface
	// Conflict says who else wrote a value, "" when nothing is known; nil knows nothing.
	Conflict func(change.Target) string
}
