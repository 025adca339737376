package api

import (
	"fmt"
	"math"
	"strings"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/verify"
)

// PlacedAt is when and how the agent placed a process that it saw come.
type PlacedAt struct {
	At   time.Time     `json:"at"`
	Took time.Duration `json:"took_ns"` // from its exec, or its change of user, group or name
	How  string        `json:"how"`
	// Resident is how much it had in memory then, bytes: at most so much stays charged where it was. 0 is not known: of
	// a process that was placed as it started.
	Resident int64 `json:"resident,omitempty"`
}

// ScheduleStatus is one schedule of the applied policy.
type ScheduleStatus struct {
	Name string `json:"name"`
	Open bool   `json:"open"`
	// Since is when the window opened, of an open one.
	Since time.Time `json:"since,omitzero"`
	// Next is when it opens or closes next; zero when that is not within years.
	Next time.Time `json:"next,omitzero"`
	// Skipped is why a window that is open is not in force.
	Skipped string `json:"skipped,omitempty"`
}

// Status is what `status` shows. Field names are stable (--json).
type Status struct {
	Revision  int           `json:"revision"`
	AppliedAt time.Time     `json:"applied_at,omitzero"`
	AppliedBy string        `json:"applied_by,omitempty"`
	Agent     AgentStatus   `json:"agent"`
	Load      string        `json:"load"` // /proc/loadavg, first three figures
	Groups    []GroupStatus `json:"groups"`
	Overrides []string      `json:"overrides,omitempty"`
	// Unlaid is what owners have set and that is not in force, and why.
	Unlaid []string `json:"unlaid,omitempty"`
	// Tuned counts the settings of the host that are kept: `tune status` lists them.
	Tuned int `json:"tuned,omitempty"`
	// Conflicts are limits that somebody else changed.
	Conflicts []state.Conflict `json:"conflicts,omitempty"`
	// Lifted are memory.high that were lifted, since their groups were stuck at them.
	Lifted []state.Lifted `json:"lifted,omitempty"`
	// SLO is what databases are promised, and how that goes: only the agent knows.
	SLO []SLO `json:"slo,omitempty"`
	// ZFS is what the agent saw of OpenZFS when it looked last; nil without an agent, and where it is not loaded.
	ZFS *ZFS `json:"zfs,omitempty"`
	// Schedules of the policy, in its order.
	Schedules []ScheduleStatus `json:"schedules,omitempty"`
	Released  []string         `json:"released,omitempty"`
	Notes     []plan.Note      `json:"notes,omitempty"`
	// Problems of the applied policy on the host as it is now.
	Problems policy.Problems `json:"problems,omitempty"`
	// Pending is an interrupted change that `rollback` undoes.
	Pending string `json:"pending,omitempty"`
	// Trial is a change that waits to be confirmed.
	Trial *state.Trial `json:"trial,omitempty"`
	// UnderWay is a change that somebody makes at this moment.
	UnderWay string `json:"under_way,omitempty"`
	// Differs counts the steps that would bring the host back to the policy.
	Differs  int      `json:"differs"`
	Warnings []string `json:"warnings,omitempty"`
	// Orphans look like databases or helpers and are in no group.
	Orphans []classify.Orphan `json:"orphans,omitempty"`
}

// AgentStatus is what is known of the agent.
type AgentStatus struct {
	Running  bool      `json:"running"`
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Source   string    `json:"source,omitempty"`      // where it learns of new processes, and why not from events
	Events   int64     `json:"events,omitempty"`      // that the kernel sent
	Lost     int64     `json:"events_lost,omitempty"` // each loss was answered by a look at every process
	LastLook time.Time `json:"last_look,omitzero"`
	Looks    int64     `json:"looks,omitempty"`
	Moved    int64     `json:"moved,omitempty"`
	// Inherited counts members that were seen in their groups without having been moved: born inside, or started there.
	Inherited int64 `json:"inherited,omitempty"`
	Retries   int64 `json:"retries,omitempty"` // looks that left something to the next one
	// Placement is how long it took to place those that were moved.
	Placement *Placement `json:"placement,omitempty"`
	Gone      int64      `json:"gone_before_placed,omitempty"` // that exited when they were about to be moved
	Mistaken  int64      `json:"mistaken_moves,omitempty"`     // of a process with a reused number; each was put back
	Repaired  int64      `json:"repaired,omitempty"`           // values put back that somebody else had changed
	Error     string     `json:"error,omitempty"`              // of the last look
}

// Placement is how long it took from a process's exec, or from its change of user, group or name, until it was in its
// group. Only those count of which an event told.
type Placement struct {
	Count   int64         `json:"count"`
	Slowest time.Duration `json:"slowest_ns"`
	// Within counts by the smallest of the bounds that held; Bound 0 is more than all of them.
	Within []PlacedWithin `json:"within"`
}

// PlacedWithin is one bar of the histogram: beyond the bound before it, and within this one.
type PlacedWithin struct {
	Bound time.Duration `json:"bound_ns"`
	Count int64         `json:"count"`
}

// Share gives the smallest bound within which a share of them (0 to 1) was placed: an upper limit of that quantile. It
// is the slowest one where no bound is.
func (p *Placement) Share(share float64) time.Duration {
	need, seen := int64(math.Ceil(share*float64(p.Count))), int64(0)
	for _, w := range p.Within {
		if seen += w.Count; seen >= need && w.Bound > 0 {
			return min(w.Bound, p.Slowest)
		}
	}
	return p.Slowest
}

// GroupStatus is one group with what it was asked, what is in force and what it uses.
type GroupStatus struct {
	Group    string         `json:"group"`
	Role     policy.Role    `json:"role,omitempty"`
	Instance string         `json:"instance,omitempty"`
	Frozen   string         `json:"frozen_until,omitempty"`
	Overdue  bool           `json:"overdue,omitempty"` // the freeze has ended and is still in force
	Released bool           `json:"released,omitempty"`
	Members  []Member       `json:"members"`
	Limits   []verify.Limit `json:"limits"`
	Share    plan.Share     `json:"share"`
	Usage    metrics.Usage  `json:"usage"`
	// MemorySource says where the memory figures are from: "cgroup", or "processes" where no limit needs
	// the memory controller and they are sums over the members, shared pages counted once per member.
	MemorySource string `json:"memory_source"`
	// ChargedElsewhere is at least how much anonymous memory of a member, bytes, is charged where it was before it
	// came: the kernel moves no charge on v2, nor on v1 unless told to. The group's limits do not see it.
	ChargedElsewhere int64              `json:"charged_elsewhere,omitempty"`
	Tasks            metrics.TaskStates `json:"tasks"`
	// Load is kept by the agent, from its start on; nil without one.
	Load *metrics.Load `json:"load_average,omitempty"`
	// Traffic is what it sends and receives, when interfaces are governed.
	Traffic *GroupTraffic `json:"traffic,omitempty"`
}

// Member is a process of a group.
type Member struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
	User string `json:"user"`
	// Placed is false when it belongs to the group and is not in its directories (yet).
	Placed bool `json:"placed"`
	// Kept is the unit that keeps it out of them.
	Kept string `json:"kept_in,omitempty"`
	By   string `json:"by"` // the rule or pin that claims it
}

// Everything is what is released when no group is named.
const Everything = "everything"

// GroupTraffic is what a group sends and receives.
type GroupTraffic struct {
	metrics.Traffic
	// Outside are sockets of its processes that were opened before they came into the group: its limits do not see what
	// those send.
	Outside int `json:"outside,omitempty"`
	// OutsidePorts are the ports of its own that they are on.
	OutsidePorts []int `json:"outside_ports,omitempty"`
}

// OutsideHint says what helps sockets that were opened before their process came into the group.
func (t *GroupTraffic) OutsideHint() string {
	if t == nil || t.Outside == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of its sockets were opened before their process came into the group, and their traffic "+
		"is not held until they are opened anew", t.Outside)
	if len(t.OutsidePorts) > 0 {
		ports := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(t.OutsidePorts)), ", "), "[]")
		return text + fmt.Sprintf("; `by: ports` in its network entry holds those on port %s, too", ports)
	}
	return text
}
