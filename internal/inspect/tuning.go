package inspect

import (
	"cmp"
	"context"
	"path/filepath"
	"strconv"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/service"
	"bulkhead/internal/transaction"
)

// Tuning lists the settings of the kernel that are kept.
func Tuning(ctx context.Context, c *transaction.Controller) ([]api.Tuning, error) {
	_, s, err := c.Recorded()
	if err != nil {
		return nil, err
	}
	all := []api.Tuning{}
	if s.Applied == nil || s.Released[""] {
		return all, nil
	}
	v, _, err := c.Current(ctx, transaction.ViewOptions{})
	if err != nil {
		return nil, err
	}
	overruled := transaction.Overruled(c, v)
	for _, t := range v.Tune {
		target := t.Target()
		holds, _ := v.Observed.Held(target)
		from := cmp.Or(t.From, "host.tune")
		if t.Pos.Line > 0 {
			from += ", " + filepath.Base(t.Pos.File) + ":" + strconv.Itoa(t.Pos.Line)
		}
		now := ""
		if running, has := tunable.Running(target); has {
			now = v.Observed.Values[running]
			if tunable.Same(running, t.Value, now) {
				now = ""
			}
		}
		all = append(all, api.Tuning{Name: t.Name, Wanted: t.Value, Holds: tunable.HumanValue(holds),
			From: from, Before: tunable.HumanValue(v.Observed.Originals.Tuned[target]), Overruled: overruled[target],
			Waits: tunable.Waits(c.Host.Root, target, t.Value), Running: now, Unit: target.Kind == service.KindSetting,
			Disk: t.Disk, UntilBoot: t.Disk != "" && target.Kind == tunable.KindQueueByName})
	}
	for _, t := range s.Tuned {
		if t.IsLimit() {
			all = append(all, api.Tuning{Name: t.Name, Wanted: t.Value, From: "tune apply " + t.Rule, Limit: true})
		}
	}
	return all, nil
}
