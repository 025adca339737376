package transaction

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/optionfile"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/linux/tunable/service"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

// ReadTuning reads the settings of the kernel that are wanted, or that bulkhead changed, for a plan that is still to be
// made. A setting that the kernel does not have holds nothing.
func (c *Controller) ReadTuning(ctx context.Context, v *View) error {
	if v.Actuators == nil {
		v.Actuators = c.actuators(v.Tree, v.Facts, v.Releasing)
	}
	targets := slices.Collect(maps.Keys(v.Observed.Originals.Tuned))
	if v.quick {
		v.Observed.Values = trusted(v)
	}
	for _, t := range v.Tune {
		targets = append(targets, t.Target())
		if file, exists := tunable.BootFile(t.Target().Kind); exists {
			targets = append(targets, file)
		}
		if running, has := tunable.Running(t.Target()); has {
			targets = append(targets, running)
		}
	}
	return v.readValues(ctx, targets)
}

// trusted are values of targets that a look of the agent's does not read.
func trusted(v *View) map[change.Target]string {
	values := maps.Clone(v.Observed.Values)
	if values == nil {
		values = map[change.Target]string{}
	}
	for target, before := range v.Observed.Originals.Tuned { // a command gives it back, and not the agent
		if ofSELinux(target) {
			values[target] = before
		}
	}
	for _, t := range v.Tune {
		if !ofSELinux(t.Target()) {
			continue
		}
		values[t.Target()] = t.Value
		if running, has := tunable.Running(t.Target()); has {
			values[running] = t.Value
		}
	}
	return values
}

// ofSELinux says whether a target is of SELinux's policy: looks of the agent do not read it. A tree may have a million
// files, and a program that changes the policy works on it for minutes.
func ofSELinux(t change.Target) bool { return sepolicy.NamePrefix(t.Kind) != "" }

// Overruled says which lines of other files set the settings that are wanted after bulkhead's own file, at boot.
func Overruled(c *Controller, v *View) map[change.Target]string {
	wanted := map[change.Target]string{}
	for _, t := range v.Tune {
		wanted[t.Target()] = t.Value
	}
	if len(wanted) == 0 {
		return nil
	}
	return tunable.Overruled(c.Host.Root, wanted)
}

// overrulings tells of them.
func overrulings(c *Controller, v *View) (notes []plan.Note) {
	overruled := Overruled(c, v)
	for _, t := range v.Tune {
		if by := overruled[t.Target()]; by != "" {
			until := "the host boots"
			switch t.Target().Kind {
			case service.KindSetting:
				until = service.Unit(t.Target()) + " starts again"
			case optionfile.Kind:
				until = "the server reads its files"
			}
			notes = append(notes, plan.Note{Key: t.TuningKey(), Text: fmt.Sprintf(
				"%s = %s lasts until %s: then %s, after bulkhead's file; take that line out", t.Name, t.Value, until,
				by)})
		}
	}
	return notes
}

// services is systemd as settings of services need it. It is asked when it is needed, and equal for one host.
type services struct {
	c     *Controller
	facts *host.Facts
	// releasing has a drop-in go also where systemd does not answer: it hears of that at its next reload.
	releasing bool
}

// Reload has systemd read drop-ins.
func (s services) Reload(ctx context.Context, units ...string) error {
	m, err := s.asked(ctx)
	if err == nil {
		err = m.ReloadUnits(ctx, units...)
	}
	if err != nil && s.releasing {
		s.c.Log.Warn("drop-ins are away, but systemd has not read that: `systemctl daemon-reload` when it answers "+
			"again", "units", units, "err", err)
		return nil
	}
	return err
}

// MainPID is the main process of a service.
func (s services) MainPID(ctx context.Context, unit string) (int, error) {
	m, err := s.asked(ctx)
	if err != nil {
		return 0, err
	}
	u, err := m.Unit(ctx, unit)
	if err != nil {
		return 0, err
	}
	return u.MainPID, nil
}

// Version is that of the systemd that runs.
func (s services) Version(ctx context.Context) (int, error) {
	m, err := s.asked(ctx)
	if err != nil {
		return 0, err
	}
	return m.Version().Number, nil
}

// asked is systemd; one that cannot be asked is an error.
func (s services) asked(ctx context.Context) (*systemd.Manager, error) {
	m, err := s.c.Manager(ctx, s.facts)
	if err == nil && m == nil {
		err = unitfiles.ErrMute
	}
	return m, err
}
