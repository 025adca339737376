// Package inspect has the verbs that change nothing: discover, check, plan, status, explain, verify, and the limits
// that hold on a host without bulkhead.
package inspect

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/live"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/planner"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/transaction"
	"bulkhead/internal/verify"
)

// Discovery is what `discover` shows.
type Discovery struct {
	Facts        *host.Facts       `json:"host"`
	Capabilities []knob.Capability `json:"capabilities"`
	Instances    []engine.Instance `json:"instances"`
}

// Discover looks at the host without a policy.
func Discover(c *transaction.Controller) (*Discovery, error) {
	facts, err := c.Host.Facts()
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	procs, err := c.Host.Proc.Processes(procfs.Options{})
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "read the process table: %w", err)
	}
	tree := c.TreeOf(facts)
	return &Discovery{
		Facts:        facts,
		Capabilities: knob.Capabilities(facts, hasKnob(tree)),
		Instances:    recognise.Instances(procs, recognise.SourceOf(c.Host)),
	}, nil
}

// Held gives what memory an instance holds that cannot be taken from it, bytes: that of its processes, and what they
// share once. What cannot be read counts as none.
func Held(proc procfs.FS) func(engine.Instance) int64 {
	return func(i engine.Instance) int64 {
		var own, shared int64
		for _, m := range i.Members {
			if held, err := proc.Memory(m.ID.PID); err == nil {
				own += held.Anon
				shared = max(shared, held.Shmem)
			}
		}
		return own + shared
	}
}

// controls says whether a directory is known to have the controller of a file. On v1 it has those of its hierarchy.
func controls(t *cgroup.Tree, d cgroup.Dir, file string) bool {
	available, _, err := t.Subtree(d)
	controller, _, _ := strings.Cut(file, ".")
	return err == nil && slices.Contains(available, host.V1Name(controller))
}

// hasKnob answers whether a directory below the root of a hierarchy shows a file. A root directory
// lacks some files that its children have, so only a child proves an absence; and on v2 only one that has the
// file's controller, which systemd for one gives to few.
func hasKnob(t *cgroup.Tree) func(hierarchy, file string) knob.Verdict {
	children := map[string][]string{}
	return func(hierarchy, file string) knob.Verdict {
		root := cgroup.Dir{Hierarchy: hierarchy, Path: "/"}
		if _, err := t.Read(cgroup.File{Dir: root, Name: file}); err == nil {
			return knob.Yes
		}
		names, done := children[hierarchy]
		if !done {
			names, _ = t.Children(root)
			children[hierarchy] = names
		}
		for _, name := range names {
			d := cgroup.Dir{Hierarchy: hierarchy, Path: "/" + name}
			files, err := t.Files(d)
			if err != nil || !controls(t, d, file) {
				continue
			}
			for _, f := range files {
				if f == file {
					return knob.Yes
				}
			}
			return knob.No
		}
		return knob.Unknown
	}
}

// Check reads a policy and holds it against this host. It never looks at live use, but for who is connected to a
// database. The error is
// policy.Problems when the policy cannot stand.
func Check(ctx context.Context, c *transaction.Controller, sources []policy.Source) (*transaction.View, error) {
	v, err := c.Classify(ctx, transaction.ViewOptions{Options: snapshot.Options{Sources: sources}})
	if err == nil {
		err = nameTaken(ctx, c, v)
	}
	if err != nil {
		return v, err
	}
	v.Policy.Notes = append(v.Policy.Notes, v.Classified.Notes...)
	v.Policy.Notes = append(v.Policy.Notes, classify.UnknownNames(v.Policy, v.Rules)...)
	said := v.Classified
	said.Notes = nil // they are among the policy's, with their places
	v.Plan = planner.Make(plan.Input{Facts: v.Facts, Host: v.Policy.Host, Agent: v.Policy.Agent, Former: v.Names.Former,
		Classified: said, Observed: v.Observed, Live: unwatched{live.New(c.Host, v.Instances)}})
	return v, nil
}

// unwatched asks who is connected to what, and watches nobody.
type unwatched struct{ plan.Live }

// Cores implements plan.Live.
func (unwatched) Cores([]procfs.ID, time.Duration) map[procfs.ID]float64 { return nil }

// PlanFor is what apply would do with a policy; with no sources, what would bring the host back to
// the applied one. At is the time whose windows are open, and overrides not at their end; zero is now.
func PlanFor(ctx context.Context, c *transaction.Controller, sources []policy.Source, at time.Time) (*transaction.View,
	error) {
	if len(sources) == 0 {
		l := transaction.ViewOptions{Options: snapshot.Options{Shares: true, At: at}, Live: true}
		v, _, err := c.Current(ctx, l)
		return v, err
	}
	facts, s, err := transaction.RecordedAt(c, at)
	if err != nil {
		return nil, err
	}
	l := transaction.OptionsOver(s, sources)
	l.Released, l.Facts, l.Shares, l.At, l.AskNodes, l.Root = nil, facts, true, at, true, ""
	l.Live = true
	v, err := c.View(ctx, l)
	if err != nil {
		return nil, err
	}
	return v, nameTaken(ctx, c, v)
}

// Explanation is why a process is where it is.
type Explanation struct {
	Process  procfs.Process     `json:"process"`
	Group    string             `json:"group,omitempty"`
	By       string             `json:"by,omitempty"`
	Placed   bool               `json:"placed"`
	Reason   string             `json:"reason,omitempty"` // why it is in no group, or not in its place
	Helper   string             `json:"helper,omitempty"` // what it does for which instance, for a helper
	Attempts []classify.Attempt `json:"attempts"`
	Levels   []LevelLimits      `json:"levels,omitempty"`
	// When is how it came to be placed; nil when no agent saw it come.
	When *api.PlacedAt `json:"when,omitempty"`
	// Biting are the limits that held one of the levels back while they were watched, Watched long.
	Biting  []Throttled   `json:"biting"`
	Watched time.Duration `json:"watched_ns,omitempty"`
	// Sockets are those of it that the limits on interfaces of its group, or of one above, do not see.
	Sockets []OutsideSocket `json:"sockets_outside,omitempty"`
	// Charges are where its memory is charged; nil when that was not asked for.
	Charges []Charge `json:"charges,omitempty"`
}

// LevelLimits is what one level of the tree, from the group up to our root, holds the process to.
type LevelLimits struct {
	Group  string         `json:"group"` // "" is our root group
	Limits []verify.Limit `json:"limits"`
}

// ExplainOptions of Explain.
type ExplainOptions struct {
	Watch time.Duration // for how long to look which limits bite; 0 does not
	Exact bool          // find where every page of the process is charged
}

// Explain says why a process is where it is, which limits reach it, and which of them bite now: those that do while the
// levels are watched.
func Explain(ctx context.Context, c *transaction.Controller, pid int, o ExplainOptions) (*Explanation, error) {
	v, s, err := c.Current(ctx, transaction.ViewOptions{})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(v.Observed.Processes, func(p procfs.Process) bool { return p.PID == pid })
	if i < 0 {
		return nil, api.Errorf(api.CodeUsage, "`bulkhead status --orphans` and ps(1) list processes",
			"no process %d", pid)
	}
	e := &Explanation{Process: v.Observed.Processes[i]}
	if e.Attempts, err = classify.Explain(v.Classified.Groups, v.Rules, pid); err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "explain process %d: %w", pid, err)
	}
	e.Helper = classify.Service(v.Rules, pid)
	if o.Exact {
		if e.Charges, err = charges(ctx, c.Host, v, &e.Process); err != nil {
			return nil, err
		}
	}
	e.place(v)
	if e.Group == "" {
		e.Reason = whyNot(v, pid)
		return e, nil
	}
	if !e.Placed && policy.Released(s.Released, e.Group) {
		e.Reason = "the group is released and holds no limits; `bulkhead apply` governs it again"
		return e, nil
	}
	if !e.Placed {
		e.Reason = cmp.Or(notedOf(v, e.Group, pid), e.Reason)
	}
	e.Sockets = socketsOf(c, v, pid, e.Group)
	for at := e.Group; at != "."; at = filepath.Dir(at) {
		e.Levels = append(e.Levels, LevelLimits{Group: at, Limits: Verifiable(v).Limits(at)})
	}
	if o.Watch <= 0 || !e.Placed {
		return e, nil
	}
	var groups []string
	for _, l := range e.Levels {
		groups = append(groups, l.Group)
	}
	e.Biting, err = watchThrottling(ctx, v, groups, o.Watch)
	e.Watched = o.Watch
	return e, err
}

// place says which group the process belongs to, and whether the group's limits hold it.
func (e *Explanation) place(v *transaction.View) {
	for _, p := range v.Members {
		if p.Process.PID != e.Process.PID {
			continue
		}
		e.Group, e.By = p.Group, p.By
		var unit string
		if e.Placed, unit = layout.Held(v.Layout, &p.Process, p.Group); unit != "" {
			e.Reason = "it is a part of " + unit + ", and no limit of the group holds it; `from_unit: true` takes " +
				"out of a unit what is not its main process"
		}
	}
}

// notedOf is what the plan says of a member of a group, "" for nothing.
func notedOf(v *transaction.View, group string, pid int) (text string) {
	for _, n := range v.Plan.Notes {
		if n.Group == group && n.PID == pid {
			text = n.Text
		}
	}
	return text
}

// whyNot says why a process is in no group.
func whyNot(v *transaction.View, pid int) string {
	if reason := classify.Protected(pid, v.Rules); reason != "" {
		return "it is never moved: " + reason
	}
	for _, s := range v.Classified.Skips {
		if s.Process.PID == pid {
			if s.Ambiguous {
				return s.Reason
			}
			return "rule of " + s.Group + " matches, but " + s.Reason
		}
	}
	return "no rule matches"
}

// nameTaken reports, as a problem of the policy, a directory with the name of a root group or an outermost group that
// bulkhead did not make: apply refuses it. Who may not read the state directory cannot tell.
func nameTaken(ctx context.Context, c *transaction.Controller, v *transaction.View) error {
	if c.Store == nil {
		return nil
	}
	made := c.Store.InBoot(v.Facts.BootID).Made()
	for _, d := range v.Layout.Dirs() {
		if d.Parent().Path != "/" || made[d] || v.Layout.Theirs(d) {
			continue
		}
		if there, err := v.Tree.Exists(d); err != nil || !there {
			continue
		}
		if owned, err := c.Reader().OwnsSlice(ctx, v.Facts, d); err != nil {
			return transaction.Unasked(err)
		} else if owned {
			continue
		}
		at := cmp.Or(v.Policy.Host.RootPos, v.Policy.Host.Pos, policy.Pos{File: v.Policy.Sources[0].Path})
		taken := policy.Problem{Pos: at, Msg: v.Tree.Abs(d) + " already exists and bulkhead did not make it",
			Hint: transaction.HintTaken(v, d)}
		return yamlform.Annotate(policy.Problems{taken}, v.Policy.Sources)
	}
	return nil
}
