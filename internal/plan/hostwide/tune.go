package hostwide

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Tune gives the kernel the settings that the host is to have, and the host the files that set them at boot. What
// nobody asks for any more has its old value again. A setting that this kernel does not have is noted.
func Tune(in *plan.Input, out *plan.Plan) {
	if in.Released[layout.RootGroup] {
		return
	}
	wanted := tuneWanted(in, out)
	before := len(out.Steps)
	GiveTuningBack(in, out, wanted, "nobody asks for it any more")
	back := out.Steps[before:]
	for _, w := range wanted {
		now, known := in.Observed.Held(w.Target)
		for _, s := range back { // what excluded it is given back first, and then it is as it was
			if value, is := strings.CutPrefix(s.New, w.Addr+"="); is && tunable.Twin(s.Addr) == w.Addr {
				now = value
			}
		}
		if tunable.Same(w.Target, w.Value, now) || !known || in.Leave[w.Target] != "" {
			continue
		}
		step := plan.Step{Change: change.Of(w.Target, now, w.Value), Reason: plan.Reason(w.Setting),
			Setting: w.Setting.Key}
		if w.Kind == tunable.KindBootFile {
			step.Reason, step.Setting = "settings of the kernel at boot, host.tune", ""
		}
		out.Steps = append(out.Steps, step)
	}
	out.Want = append(out.Want, wanted...)
}

// tuneWanted is what targets are to hold: settings in order of name, then boot files.
func tuneWanted(in *plan.Input, out *plan.Plan) (wanted []plan.Wanted) {
	files := map[change.Target]map[string]string{}
	for _, t := range slices.SortedFunc(slices.Values(in.Tune), byName) {
		target := tunable.Target(t.Name)
		if _, known := in.Observed.Held(target); !known {
			out.Notes = append(out.Notes, plan.Note{Key: t.TuningKey(), NotEnforced: true,
				Text: "host.tune: this kernel has no " + t.Name + ", or it cannot be read"})
			continue
		}
		s := policy.Setting{Key: t.TuningKey(), Value: policy.TuningValue(t.Value), From: cmp.Or(t.From, "host.tune"),
			Pos: t.Pos}
		wanted = append(wanted, plan.Wanted{Target: target, Value: t.Value, Setting: s})
		file := tunable.BootFile(target.Kind)
		if files[file] == nil {
			files[file] = map[string]string{}
		}
		files[file][target.Addr] = t.Value
	}
	for _, file := range slices.SortedFunc(maps.Keys(files), byAddr) {
		lines := tunable.Lines(files[file])
		s := policy.Setting{Key: "host.tune", Value: policy.TuningValue(tunable.Human(lines)), From: "host.tune"}
		wanted = append(wanted, plan.Wanted{Target: file, Value: lines, Setting: s})
	}
	return wanted
}

// GiveTuningBack writes what was there before, of what is not wanted any more: first the files, so that a boot in
// between does not set it again.
func GiveTuningBack(in *plan.Input, out *plan.Plan, wanted []plan.Wanted, why string) {
	before := in.Observed.Originals.Tuned
	for _, target := range slices.SortedFunc(maps.Keys(before), byAddr) {
		now, known := in.Observed.Held(target)
		if slices.ContainsFunc(wanted, func(w plan.Wanted) bool { return w.Target == target }) || !known ||
			tunable.Same(target, before[target], now) {
			continue
		}
		out.Steps = append(out.Steps, plan.Step{Change: change.Of(target, now, before[target]), Reason: why})
	}
}

func byName(a, b policy.Tuning) int { return strings.Compare(a.Name, b.Name) }

// byAddr puts boot files, which lie in /etc, before others.
func byAddr(a, b change.Target) int {
	boot := func(t change.Target) int {
		if t.Kind == tunable.KindBootFile {
			return 0
		}
		return 1
	}
	return cmp.Or(boot(a)-boot(b), strings.Compare(a.Addr, b.Addr))
}
