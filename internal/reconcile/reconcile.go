// Package reconcile brings the host back to the applied policy, pass after pass, for the agent: new processes into
// their groups (a fast path where one is plain), values back that others changed, overrides and windows ended in time,
// limits split anew by demand, and memory.high lifted where a group is stuck at it. A pass that finds nothing to do
// writes nothing.
package reconcile

import (
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/access"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Reconciler brings the host back to the applied policy, again and again, for the agent. Its methods are for one
// goroutine.
type Reconciler struct {
	*transaction.Controller

	known  *host.Facts
	memory memory
	used   ioSamples // when limits were split by demand the last time
	due    due
	// Admitted is who may ask the agent, as of the last pass.
	Admitted access.List
	disks    shape
	links    shape // of interfaces
}

// New makes this process the agent, which no rule may match.
func New(c *transaction.Controller) *Reconciler {
	c.Agent = c.Self
	return &Reconciler{Controller: c}
}

// Close lets go of what it holds of the state directory. The controller stays open.
func (c *Reconciler) Close() {
	if c.memory.lock != nil {
		c.memory.lock.Close()
	}
}

// memory is what one look leaves to the next. It is for one goroutine.
type memory struct {
	snapshot.Cache
	view *transaction.View // of the last look
	seen Seen              // by the last full look; its view until somebody takes it
	// classifier places what comes until the next look, by the rules of classified.
	classifier *classify.Classifier
	classified *transaction.View
	// observed is what the last full look saw of the groups, nil when it may have changed since. Only place
	// uses it, which writes no limit.
	observed *plan.Observation
	movers   map[int]mover
	members  map[procfs.ID]string       // at the last look that classified; the group where it was, "" outside of it
	spare    map[procfs.ID]string       // members of the look before, whose memory the next one takes
	governed map[string]layout.Governed // units at the last full look
	recorded recorded
	lock     *journal.SharedLock // for the short way into a group; nil until it is taken
	patience time.Duration       // for which the next look waits for systemd; 0: as long as the first
	// refused are the groups that the last look at every limit could not put in force.
	refused map[string]bool
	barred  map[string]bar // by group
	// waits is how long looks waited for memory to fall.
	waits   transaction.Waits
	told    map[told]time.Time
	brought map[procfs.ID]time.Time // processes that the history says were brought back, a while ago
	// highs are the directories that have a memory.high, by the last full look; watches is what was read at highAt.
	highs   map[cgroup.Dir]string
	watches map[cgroup.Dir]*stallWatch
	highAt  time.Time
	// retained is when the history was shortened the last time.
	retained time.Time
	settled  *inForce // by the last full look; nil when not known
	// forks that events told of since the look before.
	forks []Fork
}

// inForce is what was in force after the last full look.
type inForce struct {
	values map[change.Target]string // what was wanted, and held
	// dirs are the directories of ours, with their inode numbers: one that systemd made anew holds what it gave it.
	dirs map[cgroup.Dir]uint64
}

// ioSamples are what was read and written so far, by directory.
type ioSamples struct {
	at time.Time
	of map[cgroup.Dir]metrics.Sample // nil before the first
}

// shape is a text that tells the disks, or the interfaces, apart from other ones, as it was when an agent looked last.
type shape struct {
	at   time.Time
	text string // "" before the first look
}

// recorded is what the short way into a group needs to know of the state directory.
type recorded struct {
	calm  bool // a policy is applied, nothing is frozen or refused
	files [len(documents)]version
	// checked says that the documents were still so when the lock was shared last: they are until somebody takes it.
	checked bool
	// homes are where the first members of groups came from, as far as asked for. They hold as long as the files do.
	homes map[string]map[string]string
}

// documents are those that the short way depends on.
var documents = [...]string{state.DocApplied, state.DocOverrides, state.DocReleased, state.DocPins, state.DocFreezes}

// version tells one writing of a document from the next: each is written anew and renamed. The zero version is a
// document that is not there.
type version struct {
	device, inode uint64
	size          int64
	written       unix.Timespec
}

// Fork is one process that made another, as an event told.
type Fork struct{ Parent, Child int }

// mover is a process that was on its way into a group a moment ago.
type mover struct {
	group string
	from  map[string]string // its cgroups before
	at    time.Time
}

// told is a correction, whatever its reason. What is done to a directory counts once for all hierarchies.
type told struct {
	op, unit, path, file, key string
	target                    change.Target
	to                        string
	failed                    bool
}

// bar keeps a group whose unit systemd refused out of the looks for a while: a job that runs into its time, and all
// that is undone then, again and again, would be more harm than good. One whose memory is on its way down rests only a
// moment.
type bar struct {
	revision int
	until    time.Time
	cause    error
	falls    bool // a look is to go on with it then
}

// due is what the agent's looks have done about ends of overrides and pins, and about windows of schedules. An end, or
// a window that opens or closes, stays due until a look has put the host right.
type due struct {
	settled time.Time        // ends up to here have been dealt with
	over    []state.Override // that ended after it
	// A look that failed is repeated after wait, at again.
	again time.Time
	wait  time.Duration

	of         *policy.Policy // resolved; whose windows are in force
	open       []string       // the schedules whose windows are in force
	from, till time.Time      // open is right from one time to before the other, which may be zero: for ever
}

// stallWatch is the samples of one directory that has a memory.high, the oldest first, no more of them than the window
// needs.
type stallWatch struct {
	group   string
	samples []metrics.Sample
}
