package transaction

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/plan"
)

// ReadTuning reads the settings of the kernel that are wanted, or that bulkhead changed, for a plan that is still to be
// made. A setting that the kernel does not have holds nothing.
func (c *Controller) ReadTuning(ctx context.Context, v *View) error {
	if v.Actuators == nil {
		v.Actuators = actuators(c.Host, v.Tree, c.writable())
	}
	targets := slices.Collect(maps.Keys(v.Observed.Originals.Tuned))
	for _, t := range v.Tune {
		targets = append(targets, t.Target())
		if file, exists := tunable.BootFile(t.Target().Kind); exists {
			targets = append(targets, file)
		}
	}
	return v.readValues(ctx, targets)
}

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
			notes = append(notes, plan.Note{Key: t.TuningKey(), Text: fmt.Sprintf(
				"%s = %s lasts until the host boots: then %s, after bulkhead's file; take that line out", t.Name,
				t.Value, by)})
		}
	}
	return notes
}
