package transaction

import (
	"context"
	"errors"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// SqueezeVerb is a change for what a database is promised. The history has a line for each episode of them.
const SqueezeVerb = "squeeze"

// Run does the plan of a view and fills in the reply.
func (c *Controller) Run(ctx context.Context, v *View, r api.Request, revision int, reply *Outcome) error {
	reply.Plan, reply.Root = v.Plan, v.Policy.Host.Root
	if err := impossible(v); err != nil {
		return err
	}
	reply.Changed = len(v.Plan.Steps) > 0
	if r.DryRun {
		return Refused(v.Plan, r.Force)
	}
	err := errors.Join(dropStale(c, v), keepUnits(ctx, c, v), keepNetwork(c, v))
	if err != nil && !ReleaseAnyway(c, r, err) {
		return api.Errorf(api.CodeFailed, "nothing was changed",
			"record what systemd holds of the units, and what is on interfaces: %w", err)
	}
	runner := c.Runner(ctx, v)
	defer closeNetwork(runner)
	result, err := runner.Run(ctx, v.Plan, apply.Options{
		Verb: r.Verb, What: r.What(), By: r.By, Reason: r.Reason, Revision: revision, Force: r.Force,
		Unrecorded: r.Verb == SqueezeVerb || onlyMoves(v.Plan) && r.By == "agent" && r.Reason == "", Docs: reply.Docs,
	})
	reply.Skipped, reply.Notes, reply.LeftOut = result.Skipped, result.Notes, result.LeftOut
	reply.Ran = result.Txn != 0
	err = inTime(err)
	if err == nil && reply.Ran {
		reply.Docs = nil // committed
	}
	if err != nil {
		return err
	}
	err = errors.Join(forgetUnits(c, v, result.LeftOut), settleNetwork(c, v, result.LeftOut))
	if err != nil && reply.Ran {
		return api.Errorf(api.CodeFailed, "mend the disk below the state directory and do it again",
			"%w, but what units and interfaces had before could not be brought up to date: %w", errInForce, err)
	}
	return err
}

// impossible says what no --force gets past: nothing could be put in force.
func impossible(v *View) error {
	if v.Releasing {
		return nil
	}
	if v.Facts.Systemd && v.Systemd == nil {
		return Unasked(v.Unasked)
	}
	for _, d := range v.Layout.Dirs() {
		if d.Parent().Path == "/" && v.Observed.Foreign[d] {
			return api.Errorf(api.CodeRefused, HintTaken(v, d), "%s already exists and bulkhead did not make it",
				v.Tree.Abs(d))
		}
	}
	return nil
}

// onlyMoves says whether a plan places processes and does nothing else: the agent's everyday work,
// which would bury the changes of people in the history.
func onlyMoves(p plan.Plan) bool {
	return !slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.PID() == procfs.ID{} })
}

// Refused is the error a plan ends in without --force.
func Refused(p plan.Plan, force bool) error {
	if len(p.Refusals) == 0 || force {
		return nil
	}
	return &apply.RefusedError{Refusals: p.Refusals}
}

// LeftOut is the error of a group whose unit systemd refuses, or whose memory does not fall, while the others are put
// in force.
func LeftOut(group string, cause error) error {
	if use := early(cause); use != nil { // without what differs from try to try
		cause = use
	}
	return api.Errorf(api.CodeFailed, "", "group %q is left out, the others go on: %w", group, cause)
}

// Waits are apply.Waits.
type Waits = apply.Waits

// Impatient has the runs of ctx wait for so long for memory to fall, together, and those after them go on.
func Impatient(ctx context.Context, w *Waits, d time.Duration) context.Context {
	w.Refill(d)
	return apply.WithWaits(ctx, w)
}

// StillFalls says whether a group is left out because its memory has not fallen yet, and for how long a run has waited
// for that.
func StillFalls(cause error) (waited time.Duration, is bool) {
	if use := early(cause); use != nil {
		return use.Waited, true
	}
	return 0, false
}

// early is the error of a run that gave up before the time of a group was over; nil when there is none.
func early(err error) *apply.UseError {
	if use := (*apply.UseError)(nil); errors.As(err, &use) && use.Early {
		return use
	}
	return nil
}

// RunOthers runs a plan, and when systemd refuses a unit of one group it runs that of the others: what was done is
// undone then, that group stays as it is, and the plan is made again, as only the failure tells which group it is. Of
// those that own names nobody is left out. Leave is told of each group that is left out; nil leaves a note in the
// reply.
func (c *Controller) RunOthers(ctx context.Context, v *View, r api.Request, revision int, reply *Outcome,
	leave func(group string, cause error), own ...string) (trouble error) {
	for {
		err := c.Run(ctx, v, r, revision, reply)
		group, spoils := spoiler(err)
		if !spoils || ctx.Err() != nil || r.DryRun ||
			slices.ContainsFunc(own, func(o string) bool { return policy.Covers([]string{group}, o) }) {
			return errors.Join(trouble, err)
		}
		left := LeftOut(group, err)
		// A person's verb, or one that is undone: it would be tried again and again.
		if leave == nil {
			defer func() { reply.Notes = append(reply.Notes, left.Error()) }() // run begins them anew
		} else {
			trouble = errors.Join(trouble, left)
			leave(group, err)
		}
		v.PlanWithout(group)
	}
}

// spoiler is the group whose unit made a plan fail, or whose memory did not fall in time, when all of it was undone.
func spoiler(err error) (group string, ok bool) {
	var step *apply.StepError
	var cause *systemd.Error
	var use *apply.UseError
	if errors.As(err, &step) && errors.As(err, &use) {
		return use.Group, len(step.Left) == 0 && !step.Open && use.Group != ""
	}
	if !errors.As(err, &step) || !errors.As(err, &cause) || len(step.Left) > 0 || step.Open || step.Step.Group == "" {
		return "", false
	}
	// Without systemd no group gets any further.
	return step.Step.Group, !errors.Is(err, systemd.ErrNoAnswer) && !errors.Is(err, systemd.ErrGone) &&
		!errors.Is(err, systemd.ErrNotRunning) && !errors.Is(err, systemd.ErrDenied)
}

// inTime makes a refusal of a change that was undone because the memory of a group did not fall in time.
func inTime(err error) error {
	var use *apply.UseError
	var step *apply.StepError
	if !errors.As(err, &use) || !errors.As(err, &step) || len(step.Left) > 0 || step.Open {
		return err
	}
	return api.Errorf(api.CodeRefused, use.Hint(), "%w", err)
}
