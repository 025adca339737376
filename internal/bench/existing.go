package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"
)

// spare says what a scenario asks of a database that is not done to one that exists.
func (r *run) spare() error {
	no := func(name, what string) error {
		return &process.RequirementError{Reason: fmt.Sprintf("database %q exists (dsn), and the scenario would %s",
			name, what), Hint: "leave the dsn out: then the run starts a throw-away server for it"}
	}
	for _, d := range r.scenario.Databases {
		if d.DSN == "" {
			continue
		}
		if r.scenario.Wire {
			return no(d.Name, "work in network namespaces of its own (wire), from where it is not reached")
		}
		for _, a := range r.scenario.Arms {
			switch {
			case slices.Contains(a.Restart, d.Name):
				return no(d.Name, fmt.Sprintf("restart it in arm %q", a.Name))
			case a.Dies == d.Name:
				return no(d.Name, fmt.Sprintf("let it be killed in arm %q", a.Name))
			}
		}
		for _, n := range r.scenario.Neighbours {
			if n.On == d.Name {
				return no(d.Name, fmt.Sprintf("have its neighbour %q log in as the server's owner", n.Name))
			}
		}
	}
	return nil
}

// lookAtExisting logs in to every database that exists, before anything is started or changed.
func (r *run) lookAtExisting(ctx context.Context) error {
	for _, d := range r.scenario.Databases {
		if d.DSN == "" {
			continue
		}
		in, err := database.NewInstance(d, "", 0, r.paths, nil)
		if err != nil {
			return err
		}
		r.existing = append(r.existing, in)
		for _, l := range r.scenario.Loads {
			if _, known := load.OwnCommands[cmp.Or(l.Script, "get")]; l.On == d.Name &&
				l.Program == "redis-benchmark" && !known {
				return &process.RequirementError{
					Reason: fmt.Sprintf("load %q would run %q, which may touch keys of others in database %q",
						l.Name, l.Script, d.Name),
					Hint: "on a database that exists there are " +
						strings.Join(slices.Sorted(maps.Keys(load.OwnCommands)), ", "),
				}
			}
		}
		if err := r.lookAt(ctx, in); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) lookAt(ctx context.Context, in *database.Instance) error {
	v, closes, err := database.Visit(ctx, in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, database.LoginTime)
	defer cancel()
	version, port, err := v.Greet(ctx)
	if err == nil {
		in.Version, in.Port = database.Named(in.Kind, version), port
		err = v.Look(ctx)
	}
	if err = errors.Join(err, closes()); err != nil {
		return &process.RequirementError{Reason: fmt.Sprintf("database %q at %s: %s", in.Name, in.Where(),
			database.OneLine(err)), Hint: "nothing was started or changed"}
	}
	return nil
}

// enter makes the run's place in a database that exists. The connection stays: it holds the lock that keeps others out.
func (r *run) enter(ctx context.Context, name string) error {
	in := r.existing[slices.IndexFunc(r.existing, func(in *database.Instance) bool { return in.Name == name })]
	in.Supervisor = r.supervisor
	r.databases = append(r.databases, in)
	r.progress.Phase("logging in to " + in.Kind.Title + " " + name)
	v, closes, err := database.Visit(ctx, in)
	if err != nil {
		return err
	}
	// Interrupted in the middle it could not be told from something of the user's.
	settled, cancel := context.WithTimeout(context.WithoutCancel(ctx), database.LoginTime)
	defer cancel()
	err = v.Settle(settled)
	if errors.Is(err, database.ErrTaken) { // what is there is the other run's
		return errors.Join(fmt.Errorf("database %q at %s: %w; wait until it has ended", name, in.Where(), err),
			closes())
	}
	r.undo.Add("take "+database.OwnPlace+" out of "+name, func(ctx context.Context) error {
		// Over a new connection: the server may have ended one that was quiet for so long.
		again, closeAgain, err := database.Visit(ctx, in)
		if err != nil {
			return errors.Join(err, closes())
		}
		return errors.Join(again.Leave(ctx), closeAgain(), closes())
	})
	return err
}

// hide takes the passwords of databases that exist out of an error.
func (r *run) hide(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, in := range r.existing {
		text = dblogin.Hide(text, in.Account.Password)
	}
	if text == err.Error() {
		return err
	}
	return &hidden{text, err}
}

// hidden is an error with another text.
type hidden struct {
	text string
	err  error
}

func (h *hidden) Error() string { return h.text }
func (h *hidden) Unwrap() error { return h.err }
