// Package snapshot takes in, once for a pass, everything that a plan is made from: the facts of the host, its processes
// and database instances, the policy with what is laid over it (windows, overrides, limits that were lifted, a canary),
// who belongs to which group, and what kernel, systemd and interfaces hold of the groups. A plan is then a function of
// a snapshot and of what is asked; it is not part of it.
//
// A Reader takes snapshots in two steps. Members reads no limit, which is enough to tell whether every process is where
// it belongs; Observe adds what the kernel holds. Existing is for a release, which goes by what is there. Each gives a
// new value that nobody changes afterwards, so that any number of goroutines may read it.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
)

// Snapshot is the host and a policy at one moment.
type Snapshot struct {
	Facts      *host.Facts
	Tree       *cgroup.Tree
	Policy     *policy.Policy // resolved
	Names      layout.Names   // of what is ours on this host
	Instances  []engine.Instance
	Classified classify.Result // groups with everything laid over their settings, and who belongs to them
	Rules      classify.Input  // what Classified was made from, for explanations
	// Members are the placements, and the processes that nothing claims and that stay in the group they are in, by pid.
	Members []classify.Placement
	// Expel are processes that leave their groups unless a rule or a pin keeps them.
	Expel map[procfs.ID]bool
	// Problems of the policy on this host as it is now; a lenient snapshot is whole in spite of them.
	Problems policy.Problems
	// Open are the schedules whose windows are laid over the policy.
	Open []policy.Schedule
	// Overrides are those that were to be laid over it, and Unlaid says by number which are not in force, and why.
	Overrides []state.Override
	Unlaid    map[int]plan.Note

	// Tune are the settings of the kernel that the host is to have, by the policy and by `tune apply`.
	Tune []policy.Tuning

	Systemd *layout.Systemd // nil without systemd, and when it could not be asked: then Unasked says why
	Unasked error
	// Stale are units whose records are of no use any more.
	Stale  []string
	Layout layout.Layout

	// Observed holds the processes after Members, and the rest after Observe or Existing.
	Observed plan.Observation
	// Network is what there is on interfaces; nil when no group has to do with any.
	Network *plan.Network

	procs   procfs.FS
	records records
	homes   map[procfs.ID]map[string]string // of commands of `run`
	options Options
}

// Options say what a snapshot is of.
type Options struct {
	Sources []policy.Source
	// Root is the root group that the groups are below, though the policy names none: an earlier version applied it.
	Root      string
	Overrides []state.Override
	Tuned     []state.Tuned
	Lifted    []state.Lifted
	Skipped   []state.Skipped
	Canary    *state.Canary // whose settings take the place of its group's
	Pins      []state.Pin
	Ended     []state.Pin // whose processes leave their groups unless a rule keeps them
	// At is the time whose windows are open.
	At time.Time
	// Facts and Processes, when the caller has them; else they are read.
	Facts     *host.Facts
	Processes []procfs.Process
	// Self is the agent, which no rule may match; zero when there is none.
	Self procfs.ID
	// Shares asks for the competitors of the groups, which effective shares need.
	Shares bool
	// Lenient goes on with what is sound when the policy has problems on the host as it is now: it was applied once,
	// and one ambiguous process or a disk that is gone must not stand in everybody's way.
	Lenient bool
	// Cache, of an agent, which takes one snapshot after the other, spares what has not changed.
	Cache *Cache
}

// Reader takes snapshots of one host. It writes nothing, and is safe for concurrent use; a Cache is not.
type Reader struct {
	Host  *host.Host
	Store *journal.Store // nil: nothing is recorded
	Log   *slog.Logger
	// Exe is this program, "" when it cannot be told: it never governs itself.
	Exe string
	// Local says that Host is the machine this runs on, and not a captured one: then it has interfaces to ask for.
	Local bool
	// Tree gives the hierarchies that the facts name.
	Tree func(f *host.Facts) *cgroup.Tree
	// Manager gives the connection to systemd; nil without an error where it does not own the tree.
	Manager func(ctx context.Context, f *host.Facts) (*systemd.Manager, error)

	disks struct { // what Storage has found
		sync.Mutex
		facts   *host.Facts // with which
		storage *blockdev.Storage
	}
	pieces pieces
}

// Cache is what one snapshot leaves to the next: nothing of the kernel's state, only what would come out the same from
// the same input. It is for one goroutine.
type Cache struct {
	Facts    *host.Facts    // that Resolved is fitted to
	Parsed   *policy.Policy // of the last sources; nil before the first
	Resolved *policy.Policy

	sources  []policy.Source
	problems policy.Problems
	tracker  recognise.Tracker
	memory   classify.Memory
	placed   int // how many placements the last snapshot had
}

// records are what the state directory says of what was made on this host. They are read once for each snapshot.
type records struct {
	made  map[cgroup.Dir]bool
	units map[string]layout.Kept
	wrong error // why the units' could not be read
}

// ByResidence marks a member that no rule and no pin claims.
const ByResidence = "residence"

// With is the snapshot with more placements.
func (s *Snapshot) With(more ...classify.Placement) *Snapshot {
	if len(more) == 0 {
		return s
	}
	next := *s
	next.Classified.Placements = append(slices.Clip(s.Classified.Placements), more...)
	next.Members = next.members()
	return &next
}

// members lists who is in a group or belongs to one, by pid.
func (s *Snapshot) members() []classify.Placement {
	placements := s.Classified.Placements
	known := make(map[procfs.ID]bool, len(placements)+len(s.Classified.Skips))
	for i := range placements {
		known[placements[i].Process.ID] = true
	}
	for i := range s.Classified.Skips {
		known[s.Classified.Skips[i].Process.ID] = true
	}
	var residents []classify.Placement
	for i := range s.Observed.Processes {
		p := &s.Observed.Processes[i]
		if known[p.ID] || s.Expel[p.ID] {
			continue
		}
		if group, ok := s.Layout.Resident(p); ok {
			residents = append(residents, classify.Placement{
				Process: *p, Group: group, By: ByResidence, Rule: "no rule matches it, and it stays in its group",
			})
		}
	}
	byPID := func(a, b classify.Placement) int { return a.Process.PID - b.Process.PID }
	if len(residents) == 0 && slices.IsSortedFunc(placements, byPID) {
		return slices.Clip(placements) // of many processes a copy is large
	}
	all := slices.Concat(placements, residents)
	slices.SortFunc(all, byPID)
	return all
}

// InForce describes the overrides that are laid over the policy, for people.
func (s *Snapshot) InForce(all []state.Override) []string {
	var texts []string
	for _, o := range all {
		if _, not := s.Unlaid[o.ID]; !not {
			texts = append(texts, o.Describe())
		}
	}
	return texts
}

func pinsOf(pins []state.Pin) map[procfs.ID]string {
	m := make(map[procfs.ID]string, len(pins))
	for _, p := range pins {
		m[p.Process] = p.Group
	}
	return m
}

// homesOf is where commands of `run` were called from.
func homesOf(lists ...[]state.Pin) map[procfs.ID]map[string]string {
	homes := map[procfs.ID]map[string]string{}
	for _, pins := range lists {
		for _, p := range pins {
			if p.Home != nil {
				homes[p.Process] = p.Home
			}
		}
	}
	return homes
}

// aloneOf is the pins that descendants do not take over.
func aloneOf(pins []state.Pin) map[procfs.ID]bool {
	m := map[procfs.ID]bool{}
	for _, p := range pins {
		if p.Alone {
			m[p.Process] = true
		}
	}
	return m
}

// asProblems gives the problems in an error, or makes one of it.
func asProblems(err error) policy.Problems {
	var problems policy.Problems
	if errors.As(err, &problems) {
		return problems
	}
	return policy.Problems{{Msg: fmt.Sprint(err)}}
}
