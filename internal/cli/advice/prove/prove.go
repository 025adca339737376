// Package prove is `tune apply --bench`: settings are measured in turns before they are kept. It changes the host
// through the verbs alone, each time on trial, so that whoever kills it leaves a change that undoes itself.
package prove

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/advise/proved"
	"bulkhead/internal/api"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/linux/tunable/mounted"
	"bulkhead/internal/linux/tunable/optionfile"
	"bulkhead/internal/linux/tunable/service"
)

// Do has a verb done on the host.
type Do func(ctx context.Context, q api.Request) (*api.Reply, error)

// Subject is what is measured.
type Subject struct {
	Text    string // "scenario commits: 11.8.2-MariaDB on port 40331"
	Rows    []proved.Row
	Measure func(ctx context.Context, text string, done, of int) (proved.Sample, error)
	// Apart says of a setting why it cannot show in what is measured; "" where it can.
	Apart func(name string) string
	// Idle is what is said where the first row has no value: nothing was done. "" is nothing.
	Idle string
	// Longest is how long one measurement may take at most.
	Longest time.Duration
}

// Source is where a subject comes from: it has it measured by do, and takes away afterwards what it made.
type Source interface {
	Open(ctx context.Context, do func(context.Context, Subject) error) error
}

// Result is what `tune apply --bench` found and did. Field names are stable.
type Result struct {
	Settings []string `json:"settings"`
	Measured string   `json:"measured"`
	Seconds  int      `json:"seconds_per_measurement"`
	proved.Result
	Kept  bool       `json:"kept"` // the settings are in force
	Notes []string   `json:"notes"`
	Reply *api.Reply `json:"reply,omitempty"` // of the change that is kept
}

// slack is what a turn may take beside its measurement: the change itself, and what a guard looks at before it.
const slack = time.Minute

// Run measures without and with the settings of a request in turns, and keeps them unless something is worse with them.
// Rounds is how many pairs there are, and seconds how long a measurement is.
func Run(ctx context.Context, do Do, from Source, q api.Request, rounds, seconds int) (*Result, error) {
	r := &Result{Seconds: seconds, Notes: []string{}}
	for _, t := range q.Tune {
		r.Settings = append(r.Settings, t.Name+" = "+t.Value)
		if strings.HasPrefix(t.Name, bootline.Prefix) {
			return nil, api.Errorf(api.CodeUsage, "`bulkhead tune apply "+t.Rule+"` sets it, without --bench",
				"%s counts when the host boots next: it cannot be measured before and after", t.Name)
		}
	}
	plan := q
	plan.DryRun, plan.ConfirmWithin = true, 0
	would, err := do(ctx, plan)
	if err != nil {
		return nil, err
	}
	if len(would.Plan.Steps) == 0 {
		return nil, api.Errorf(api.CodeFailed, "`bulkhead tune status` says who sets it",
			"there is nothing to measure: the change would change nothing%s", because(would))
	}
	err = from.Open(ctx, func(ctx context.Context, of Subject) error {
		r.Measured = of.Text
		if err := r.reach(of, q); err != nil {
			return err
		}
		turns := turnsOf(do, of, q, rounds)
		found, err := turns.Run(ctx)
		if err != nil {
			return err
		}
		r.Result = *found
		if of.Idle != "" && r.Figures[0].Verdict == proved.NotMeasured {
			return api.Errorf(api.CodeFailed, "the change is not in force", "%s", of.Idle)
		}
		return nil
	})
	if err != nil {
		return nil, said(err)
	}
	if rounds < proved.Enough {
		r.Notes = append(r.Notes, fmt.Sprintf("fewer than %d rounds: another run may find something else",
			proved.Enough))
	}
	if r.Verdict == proved.Worse {
		return r, nil
	}
	if r.Verdict == proved.NotMeasured {
		return nil, api.Errorf(api.CodeFailed, "let it measure for longer: --seconds",
			"nothing was measured: no figure came of the %d rounds; the change is not in force", rounds)
	}
	if r.Reply, err = do(ctx, q); err != nil {
		return nil, fmt.Errorf("it was measured (%s), and then could not be kept: %w", r.Verdict, err)
	}
	r.Kept = true
	return r, nil
}

// reach refuses settings none of which can show in what is measured, and notes those that cannot.
func (r *Result) reach(of Subject, q api.Request) error {
	for _, t := range q.Tune {
		if why := of.Apart(t.Name); why != "" {
			r.Notes = append(r.Notes, t.Name+" is not measured: "+why)
		}
	}
	if len(r.Notes) < len(q.Tune) {
		return nil
	}
	return api.Errorf(api.CodeUsage, "--dir DIR puts the throw-away database elsewhere; --instance NAME measures a "+
		"database that runs", "nothing of the change would show: %s", strings.Join(r.Notes, "; "))
}

// turnsOf has each turn on trial: it is undone by a process of its own if this one is killed.
func turnsOf(do Do, of Subject, q api.Request, rounds int) proved.Turns {
	trial := func(round int) api.Request {
		t := q
		t.ConfirmWithin = of.Longest + slack
		t.Reason = strings.TrimPrefix(fmt.Sprintf("%s, round %d of %d of --bench", q.Reason, round, rounds), ", ")
		return t
	}
	var waits time.Time
	return proved.Turns{
		Rounds: rounds, Rows: of.Rows,
		Measure: func(ctx context.Context, text string, done int) (proved.Sample, error) {
			return of.Measure(ctx, text, done, 2*rounds+1)
		},
		// A change that began is done with, whatever the signal: half of it would be undone, and take as long.
		Apply: func(ctx context.Context, round int) error {
			reply, err := do(context.WithoutCancel(ctx), trial(round))
			if err != nil {
				return err
			}
			waits = reply.Confirm
			return nil
		},
		Undo: func(ctx context.Context, round int) error {
			back := api.Request{Verb: "rollback", Reason: trial(round).Reason, Force: q.Force, Waits: waits}
			reply, err := do(ctx, back)
			if err == nil && reply.Recovered != "" { // something else was undone first
				_, err = do(ctx, back)
			}
			return err
		},
	}
}

// because is what a reply says of what it does not do.
func because(r *api.Reply) string {
	all := slices.Clone(r.Notes)
	for _, n := range r.Plan.Notes {
		all = append(all, n.Text)
	}
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, "; ")
}

// said gives errors of a bench, and interruptions, their hints.
func said(err error) error {
	var required *process.RequirementError
	if errors.As(err, &required) {
		return &api.Error{Code: api.CodeFailed, Err: err, Hint: required.Hint}
	}
	if errors.Is(err, proved.ErrStays) {
		return &api.Error{Code: api.CodeFailed, Err: err, Hint: "it undoes itself in a few minutes; `bulkhead " +
			"rollback` does so now, and `bulkhead tune status` says what is in force"}
	}
	if errors.Is(err, process.ErrInterrupted) || errors.Is(err, context.Canceled) {
		return &api.Error{Code: api.CodeFailed, Err: err, Hint: "the change is not in force; `bulkhead tune status` " +
			"says what is"}
	}
	return err
}

// ofService says why a setting of a service shows in no throw-away database.
func ofService(name string) string {
	if unit, is := strings.CutPrefix(name, service.Prefix); is {
		return path.Dir(unit) + " does not run the throw-away database"
	}
	return ""
}

// ofPool says why a pool of huge pages shows in no database that runs.
func ofPool(name string) string {
	if tunable.IsPool(tunable.Target(name)) {
		return "a database takes huge pages when it starts, and is not started anew between two measurements"
	}
	return ""
}

// ofOption says why a setting in an option file does not show in a database, which has what is in files that `has` says
// yes of while it runs; nil is of none.
func ofOption(name string, has func(file string) bool) string {
	option, is := strings.CutPrefix(name, optionfile.Prefix)
	file := path.Dir(option)
	switch {
	case !is:
	case has == nil:
		return "the throw-away database does not read " + file
	case path.Base(file) == optionfile.MySQLFile:
		return "a database reads " + file + " when it starts, and none is started anew between two measurements"
	case !has(file):
		return "the database that is measured does not read " + file
	}
	return ""
}

// ofMount says why a setting of another mount does not show.
func ofMount(name, mount string) string {
	if rest, is := strings.CutPrefix(name, mounted.Prefix); is && path.Dir(rest) != mount {
		return "the database lies on " + mount
	}
	return ""
}

// ofDisk says why a setting of a disk does not show where a database lies on others.
func ofDisk(h tunable.Host, name string, disks []string) string {
	_, disk := h.Find(name)
	if tunable.IsDisk(name) && !slices.Contains(disks, disk) {
		return "the database lies on " + strings.Join(disks, ", ")
	}
	return ""
}
