package observing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/attribution"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dbstat"
	"bulkhead/internal/experiment"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/sampling"
	"bulkhead/internal/transaction"
)

// How long the parts of an experiment take. A hold ends at holdFor whatever becomes of who made it.
const (
	proveFor   = 40 * time.Second // all of it, at most
	firstLook  = 2 * time.Second
	washout    = 400 * time.Millisecond // until what a change does is at rest
	blockFor   = 1200 * time.Millisecond
	holdFor    = 10 * time.Second
	askWorkFor = 2 * time.Second
	liftFor    = time.Second // of proveFor is left to lift the last hold
)

// experimentLock is a file of the state directory: one experiment at a time.
const experimentLock = "experiment.lock"

// proveOptions are the flags of an experiment.
type proveOptions struct {
	group, reason string
	dryRun        bool
}

func (o *proveOptions) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.group, "prove", "", "find out by an experiment of 40 s whether this `group` is to blame; "+
		"it is held again and again")
	c.Flags().StringVar(&o.reason, "reason", "", "with --prove: why, for the history")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "with --prove: say what would be held, do nothing")
}

// check refuses flags that do not go together.
func (o *proveOptions) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case !changed("prove") && (changed("reason") || changed("dry-run")):
		return usage.Errorf(cmd, "--reason and --dry-run are for an experiment: say of which group with --prove")
	case changed("prove") && o.group == "":
		return usage.Errorf(cmd, "--prove: say which group, as `bulkhead suspects` names it")
	case changed("prove") && (changed("at") || changed("file") || changed("for")):
		return usage.Errorf(cmd, "--prove is an experiment from now on: leave out --at, --file and --for")
	}
	return nil
}

// Proof is what an experiment found. Field names are stable.
type Proof struct {
	Victim string            `json:"victim"`
	Group  string            `json:"group"`
	Hold   *attribution.Hold `json:"hold,omitempty"` // nil where there was nothing to hold
	From   time.Time         `json:"from"`
	To     time.Time         `json:"to"`
	experiment.Finding
	Verdict string   `json:"verdict"`
	Notes   []string `json:"notes"`
}

// prove finds out by an experiment whether a group is to blame for what a victim waits for.
func (s Session) prove(ctx context.Context, cmd *cobra.Command, victim string, o proveOptions) error {
	t := &trial{s: s, victim: victim, group: o.group, until: time.Now().Add(proveFor)}
	var err error
	if t.c, err = s.Open(); err != nil {
		return err
	}
	defer t.c.Close()
	if !o.dryRun {
		f, err := statedir.TakeLock(filepath.Join(*s.State, experimentLock), statedir.Holder{PID: os.Getpid(),
			Verb: "suspects --prove", Who: s.Who(), Since: time.Now()})
		var locked *statedir.LockedError
		if errors.As(err, &locked) {
			return &api.Error{Code: api.CodeLocked, Err: fmt.Errorf("another experiment runs: %w", err),
				Hint: "wait for its end: it takes 40 s at most"}
		}
		if err != nil {
			return err
		}
		defer f.Close()
	}
	p := &Proof{Victim: victim, Group: o.group, From: time.Now(), Notes: []string{}}
	why, err := t.look(ctx, cmd, p)
	if err != nil {
		return err
	}
	if why == "" {
		if err := t.would(ctx); err != nil {
			return err
		}
		t.announce(o.dryRun)
	}
	if o.dryRun && why == "" {
		return nil
	}
	if why == "" {
		why, err = t.run(ctx, p, o.reason)
	}
	p.To, p.Why = time.Now(), why
	p.Verdict = p.words()
	if err != nil {
		p.Verdict = "stopped: " + err.Error()
	}
	if t.began {
		t.remember(ctx, p, o.reason)
	}
	if err != nil {
		return err
	}
	return s.Print(p, func() { s.printProof(p) })
}

// trial is an experiment on this host: an experiment.Subject.
type trial struct {
	s             Session
	c             *transaction.Controller
	watched       *sampling.Watched
	victim, group string
	hold          *attribution.Hold
	work          *dbstat.Source // nil where nobody counts the victim's
	until         time.Time
	longest       time.Duration // of a pair
	pair          time.Time     // when the one before the next began
	began         bool
	reason        string
	waits         time.Time // when the hold that is in force ends by itself
	last          int       // entry of the history when the experiment began
	squeezed      []string  // what a loop had lowered then
}

// look finds out what victim and suspect do, and what would hold the suspect. It gives why there is nothing to find
// out; then the host is left alone.
func (t *trial) look(ctx context.Context, cmd *cobra.Command, p *Proof) (why string, err error) {
	v, _, err := t.c.Current(ctx, transaction.ViewOptions{})
	if err != nil {
		return "", err
	}
	t.watched = sampling.Of(v, reconcile.TasksOf(v), 0)
	before, after, err := sampling.Twice(ctx, t.c.Host, t.watched, attribution.WithoutBPF, firstLook)
	if err != nil {
		return "", err
	}
	w := attribution.Between(before, after)
	r, err := reportOf(cmd, w, t.victim)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(w.Groups, func(g attribution.Group) bool { return g.Name == t.group }) {
		return "", noGroup(cmd, w, t.group)
	}
	t.hold, err = w.HoldOf(r, t.group, t.late(ctx, v))
	refused := err != nil && !errors.Is(err, attribution.ErrIdle)
	if !refused && holdsDatabase(v, t.group) {
		err = attribution.ErrDatabase
	}
	switch {
	case errors.Is(err, attribution.ErrIdle):
		return t.group + " does too little now for a hold to take anything away", nil
	case err != nil:
		return "", &api.Error{Code: api.CodeRefused, Err: fmt.Errorf("hold %q for an experiment: %w", t.group, err),
			Hint: "name a group of a neighbour, without groups below it, that is no database: `bulkhead suspects " +
				t.victim + "` lists suspects"}
	}
	p.Hold = t.hold
	if dsn := dsnOf(v, t.victim); dsn != "" {
		if t.work, err = dbstat.Parse(dsn); err != nil {
			return "", err
		}
		if t.ask(ctx) != nil {
			return "", nil // what it does can show it, however long it waits
		}
		p.Notes = append(p.Notes, "the database of "+t.victim+" does not say what it has done")
	}
	waits := part(r, t.hold.Resource)
	if waits == nil {
		return "how long " + t.victim + " waits for " + title(t.hold.Resource) + " is not known here", nil
	}
	if *waits < attribution.Harm {
		return fmt.Sprintf("nothing to explain: %s waits for %s for %s of its time", t.victim, title(t.hold.Resource),
			attribution.Percent(*waits)), nil
	}
	return "", nil
}

// late says whether what the suspect writes goes into page cache: in some looks at its processes one has a file open
// for writing, and none has one past the page cache.
func (t *trial) late(ctx context.Context, v *transaction.View) bool {
	cached := false
	for range 5 { // programs that write one file each come and go
		for _, d := range reconcile.TasksOf(v)[t.group] {
			pids, _ := v.Tree.Procs(d) // one that is gone has none
			for _, pid := range pids {
				files, _ := t.c.Host.Proc.WrittenFiles(pid) // so has one that is gone
				for _, f := range files {
					if f.Direct {
						return false
					}
					cached = cached || !strings.HasPrefix(f.Path, "/dev/")
				}
			}
		}
		if transaction.Sleep(ctx, 10*time.Millisecond) != nil {
			break
		}
	}
	return cached
}

// dsnOf is how the database of a group is asked what it has done: the dsn of guard, or else of slo; "" for none.
func dsnOf(v *transaction.View, group string) string {
	if v.Policy != nil && v.Policy.Guard != nil {
		for _, one := range v.Policy.Guard.Groups {
			if one.Group == group && one.DSN != "" {
				return one.DSN
			}
		}
	}
	for _, g := range v.Classified.Groups {
		if g.Path == group && g.SLO != nil {
			return g.SLO.DSN
		}
	}
	return ""
}

// would asks whether the hold can be made, and takes hold here.
func (t *trial) would(ctx context.Context) error {
	q := t.request()
	q.DryRun = true
	reply, _, err := t.s.Do(ctx, q)
	if err != nil {
		return err
	}
	for _, n := range reply.Plan.Notes {
		if n.Void && n.Group == t.group {
			return api.Errorf(api.CodeFailed, "`bulkhead plan` says what this kernel holds", "%s cannot be held: %s",
				t.group, n.Text)
		}
	}
	if len(reply.Plan.Steps) == 0 {
		return api.Errorf(api.CodeFailed, "`bulkhead status` says which limits are in force",
			"a hold would change nothing: %s", strings.Join(t.hold.Assign, " "))
	}
	return nil
}

func (t *trial) request() api.Request {
	return api.Request{Verb: "set", Assign: t.hold.Assign, On: t.hold.On, For: holdFor, ConfirmWithin: holdFor,
		Unguarded: true, Reason: t.reason}
}

// announce says what the experiment does, before it does it.
func (t *trial) announce(dryRun bool) {
	on := ""
	if t.hold.On != "" {
		on = " on " + t.hold.On
	}
	does := "In a moment"
	if dryRun {
		does = "An experiment would do this"
	}
	render.Printf(t.s.Err, "%s: %s is held again and again, at random times, for %s each, for %s in all at most: "+
		"%s%s. Now it %s.\n", does, t.group, (washout + blockFor).Round(100*time.Millisecond), proveFor,
		strings.Join(t.hold.Assign, " "), on, t.hold.Did)
	if dryRun {
		render.Println(t.s.Err, "dry run: nothing was changed")
		return
	}
	render.Printf(t.s.Err, "Ctrl-C stops it and lifts the hold. If this program is killed, the hold ends by itself "+
		"within %s. A change by somebody else stops the experiment; while the group is held, it is refused.\n", holdFor)
}

// run makes the experiment and judges it. Why says why nothing is shown.
func (t *trial) run(ctx context.Context, p *Proof, reason string) (why string, err error) {
	if t.work != nil {
		defer t.work.Close() // nothing was written
	}
	if t.last, err = t.lastEntry(); err == nil {
		t.squeezed, err = t.lowered()
	}
	if err != nil {
		return "", err
	}
	t.reason = strings.TrimPrefix(reason+"; ", "; ") + fmt.Sprintf("experiment %s: does %s slow %s?",
		strconv.FormatInt(time.Now().UnixNano(), 36), t.group, t.victim)
	limited, stop := context.WithDeadline(ctx, t.until.Add(-liftFor))
	defer stop()
	pairs, err := experiment.Run(limited, t, experiment.Pairs, func() bool { return rand.IntN(2) == 0 })
	if t.waits.IsZero() && ctx.Err() == nil && limited.Err() != nil { // the pair that was too long is left out
		err = nil
	}
	if err == nil {
		err = t.alone()
	}
	p.Finding = experiment.Judge(pairs)
	if err == nil {
		return p.Why, nil
	}
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	code := api.CodeOf(err)
	hint := api.HintOf(err)
	if t.waits.IsZero() {
		hint = strings.TrimSuffix("nothing is held any more; "+hint, "; ")
	} else {
		hint = fmt.Sprintf("the hold may be in force until %s, when it ends by itself; `bulkhead status` says so",
			t.waits.Local().Format(time.TimeOnly))
	}
	return "", &api.Error{Code: code, Hint: hint, Err: fmt.Errorf("the experiment ended after %d of %d pairs: %w",
		len(pairs), experiment.Pairs, err)}
}

// Hold implements experiment.Subject.
func (t *trial) Hold(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.alone(); err != nil {
		return err
	}
	// A change that began is done with, whatever the signal: half of it would be undone, and take as long.
	reply, _, err := t.s.Do(context.WithoutCancel(ctx), t.request())
	if err != nil {
		t.waits = mayHold(err, time.Now())
		return err
	}
	t.began, t.waits = true, reply.Confirm
	return nil
}

// mayHold is until when a hold may be in force that failed; zero where it is not. One that was refused changed nothing;
// of any other, as where the agent ended before its answer, that is not known.
func mayHold(err error, now time.Time) time.Time {
	switch api.CodeOf(err) {
	case api.CodeUsage, api.CodeRefused, api.CodeLocked:
		return time.Time{}
	}
	return now.Add(holdFor)
}

// Lift implements experiment.Subject.
func (t *trial) Lift(ctx context.Context) error {
	_, _, err := t.s.Do(context.WithoutCancel(ctx), api.Request{Verb: "rollback", Reason: t.reason, Waits: t.waits})
	if err != nil {
		if other := t.alone(); other != nil {
			return other
		}
		return fmt.Errorf("lift the hold: %w", err)
	}
	t.waits = time.Time{}
	return nil
}

// Measure implements experiment.Subject.
func (t *trial) Measure(ctx context.Context) (one experiment.Sample, err error) {
	if err := transaction.Sleep(ctx, washout); err != nil {
		return one, err
	}
	did, from := t.ask(ctx), time.Now()
	before, after, err := sampling.Twice(ctx, t.c.Host, t.watched, attribution.WithoutBPF, blockFor)
	if err != nil {
		return one, err
	}
	w := attribution.Between(before, after)
	r, err := attribution.Of(w, t.victim)
	if err != nil {
		return one, err
	}
	if !slices.ContainsFunc(w.Groups, func(g attribution.Group) bool { return g.Name == t.group && g.CPU != nil }) {
		return one, fmt.Errorf("%w: %q", attribution.ErrNoGroup, t.group)
	}
	one.Waits, one.IO, one.Used = part(r, t.hold.Resource), w.Moved(t.victim, t.hold), w.Used(t.group, t.hold)
	if is := t.ask(ctx); did != nil && is != nil && *is >= *did {
		one.Work = new(float64(*is-*did) / time.Since(from).Seconds())
	}
	return one, nil
}

// ask gives what the victim's database has done; nil where that is not known.
func (t *trial) ask(ctx context.Context) *int64 {
	if t.work == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, askWorkFor)
	defer stop()
	n, err := t.work.Work(ctx)
	if err != nil {
		return nil
	}
	return &n
}

// Left implements experiment.Subject: a pair takes as long as the longest one did.
func (t *trial) Left() bool {
	now := time.Now()
	if !t.pair.IsZero() {
		t.longest = max(t.longest, now.Sub(t.pair))
	}
	t.pair = now
	return now.Add(max(t.longest, 2*(washout+blockFor))).Before(t.until)
}

// remember writes the result into the history.
func (t *trial) remember(ctx context.Context, p *Proof, reason string) {
	e := journal.Entry{Time: p.To, Verb: "suspects", What: t.victim + " --prove " + t.group, By: t.s.Who(),
		Reason: reason, Text: p.Verdict, Outcome: journal.Committed}
	lock, err := t.c.Lock(context.WithoutCancel(ctx), e.Verb, e.By)
	if err == nil {
		defer lock.Release()
		_, err = t.c.Store.Record(e)
	}
	if err != nil {
		note := fmt.Sprintf("the result is not in the history: %v", err)
		p.Notes = append(p.Notes, note)
	}
}

// reportOf is attribution.Of, with its errors for people.
func reportOf(cmd *cobra.Command, w *attribution.Window, group string) (*attribution.Report, error) {
	r, err := attribution.Of(w, group)
	if errors.Is(err, attribution.ErrNoGroup) {
		return nil, noGroup(cmd, w, group)
	}
	return r, err
}

// noGroup says which groups there are.
func noGroup(cmd *cobra.Command, w *attribution.Window, group string) error {
	var names []string
	for i := range w.Groups {
		names = append(names, w.Groups[i].Name)
	}
	return usage.Errorf(cmd, "no group %q is governed here: %s", group, render.ListOr(names, "none is"))
}
