package hostwide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/linux/tunable/mounted"
	"bulkhead/internal/linux/tunable/optionfile"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/linux/tunable/service"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Tune gives the kernel the settings that the host is to have, and the host the files that set them at boot. What
// nobody asks for any more has its old value again. A setting that this kernel does not have is noted, and one of a
// disk that the groups' weights need otherwise.
func Tune(in *plan.Input, forest *layout.Forest, out *plan.Plan) {
	if in.Released[layout.RootGroup] {
		return
	}
	weighed := weighedSettings(in, forest)
	wanted := tuneWanted(in, weighed, out)
	before := len(out.Steps)
	GiveTuningBack(in, out, append(slices.Clone(wanted), weighed...), "nobody asks for it any more")
	back := out.Steps[before:]
	for _, w := range wanted {
		now, known := in.Observed.Held(w.Target)
		for _, s := range back { // what excluded it is given back first, and then it is as it was
			if value, is := strings.CutPrefix(s.New, w.Addr+"="); is && tunable.Twin(s.Addr) == w.Addr {
				now = value
			}
		}
		scheduler, follows := tunable.FollowsScheduler(w.Target)
		anew := follows && slices.ContainsFunc(out.Steps[before:],
			func(s plan.Step) bool { return s.Target == scheduler })
		if tunable.Same(w.Target, w.Value, now) && !anew || !known || in.Leave[w.Target] != "" {
			continue
		}
		if ofSELinux(w.Target) && !asked(in, w.Target) {
			out.Notes = append(out.Notes, plan.Note{Key: w.Setting.Key, NotEnforced: true, Text: fmt.Sprintf(
				"%s is %q and not %q, as it was set: somebody else has changed it, or the host was released. It "+
					"stays; `bulkhead selinux apply` sets it again where it is needed", tunable.Name(w.Target),
				sepolicy.Human(now), sepolicy.Human(w.Value))})
			continue
		}
		step := plan.Step{Change: change.Of(w.Target, now, w.Value), Reason: plan.Reason(w.Setting),
			Setting: w.Setting.Key}
		if w.Kind == tunable.KindBootFile {
			step.Reason, step.Setting = "settings at boot, host.tune", ""
		}
		counts(w.Target, w.Value, w.Setting.Key, out)
		out.Steps = append(out.Steps, step)
	}
	out.Want = append(out.Want, wanted...)
}

// ofSELinux says whether a target is of SELinux's policy, which others change too.
func ofSELinux(t change.Target) bool { return sepolicy.NamePrefix(t.Kind) != "" }

// asked says whether this change asks for a target of SELinux, or for what is in force by it.
func asked(in *plan.Input, target change.Target) bool {
	return slices.ContainsFunc(in.Tune, func(t policy.Tuning) bool {
		running, _ := tunable.Running(t.Target())
		return t.Asked && (t.Target() == target || running == target)
	})
}

// weighedSettings are the settings of disks that the weights of groups need, with what they need.
func weighedSettings(in *plan.Input, forest *layout.Forest) (weighed []plan.Wanted) {
	for target, wish := range diskWishes(in, forest) {
		number, name, _ := strings.Cut(target.Addr, "/")
		d, known := in.Facts.Device(number)
		if !known || target.Kind != blockdev.KindQueue {
			continue
		}
		for _, t := range in.Tune {
			if t.Disk == d.Name && strings.HasSuffix(t.Name, "/"+name) {
				weighed = append(weighed, plan.Wanted{Target: t.Target(), Value: wish.value})
			}
		}
	}
	return weighed
}

// tuneWanted is what targets are to hold: settings in order of name, then boot files, then limits of what runs.
func tuneWanted(in *plan.Input, weighed []plan.Wanted, out *plan.Plan) (wanted []plan.Wanted) {
	files := map[change.Target]map[string]string{}
	unlasting := map[string]bool{}
	var ofRunning []plan.Wanted // after the files: systemd reads them once
	for _, t := range slices.SortedFunc(slices.Values(in.Tune), byName) {
		target := t.Target()
		file, boots := tunable.BootFile(target.Kind)
		refuse := func(text string) {
			out.Notes = append(out.Notes, plan.Note{Key: t.TuningKey(), NotEnforced: true, Text: "host.tune: " + text})
		}
		if i := slices.IndexFunc(weighed, func(w plan.Wanted) bool { return w.Target == target }); i >= 0 {
			refuse(fmt.Sprintf("%s is %s, which the weights of groups on the disk need: take one of them out", t.Name,
				weighed[i].Value))
			continue
		}
		_, known := in.Observed.Held(target)
		if boots && (known || target.Kind == tunable.KindQueue) { // a disk that is not there may be at the next boot
			if files[file] == nil {
				files[file] = map[string]string{}
			}
			files[file][target.Addr] = t.Value
		}
		switch {
		case !known || adviseUnknown(in, t):
			refuse(missing(in, t))
			continue
		case t.Disk != "" && !boots && !unlasting[t.Disk]:
			unlasting[t.Disk] = true
			out.Notes = append(out.Notes, plan.Note{Key: t.TuningKey(), Text: fmt.Sprintf(
				"settings of the disk %s last until the host boots, and the agent sets them again then: it has no "+
					"serial number and no WWID of its own by which a rule of udev finds it", t.Disk)})
		}
		s := policy.Setting{Key: t.TuningKey(), Value: policy.TuningValue(t.Value), From: cmp.Or(t.From, "host.tune"),
			Pos: t.Pos}
		wanted = append(wanted, plan.Wanted{Target: target, Value: t.Value, Setting: s})
		if running, has := tunable.Running(target); has {
			if _, runs := in.Observed.Held(running); runs {
				ofRunning = append(ofRunning, plan.Wanted{Target: running, Value: t.Value, Setting: s})
			}
		}
	}
	for _, file := range slices.SortedFunc(maps.Keys(files), byAddr) {
		lines := tunable.Lines(files[file])
		s := policy.Setting{Key: "host.tune", Value: policy.TuningValue(tunable.Human(lines)), From: "host.tune"}
		wanted = append(wanted, plan.Wanted{Target: file, Value: lines, Setting: s})
	}
	return append(wanted, ofRunning...)
}

// adviseUnknown says whether a service is to have a mode of transparent huge pages that the kernel does not know: it
// refuses it (EINVAL) when systemd starts the service.
func adviseUnknown(in *plan.Input, t policy.Tuning) bool {
	return service.OwnPages(t.Target()) && t.Value == "madvise" && !in.Facts.Kernel.Since("6.18")
}

// missing says why the host does not have a setting.
func missing(in *plan.Input, t policy.Tuning) string {
	target := t.Target()
	switch {
	case adviseUnknown(in, t):
		return t.Name + ": madvise needs Linux 6.18, an older kernel refuses it when the service starts: write disable"
	case tunable.IsDisk(t.Name) && t.Disk == "":
		return "there is no disk as in " + t.Name
	case target.Kind == mounted.KindListed:
		return fmt.Sprintf("%s: %s cannot be read, or has no line for %s, and systemd has no unit of its own for it: "+
			"write the option where it is mounted from", t.Name, mounted.Fstab, mounted.Point(target))
	case target.Kind == bootline.KindArgument:
		return fmt.Sprintf("%s: the boot loader here is none that tune knows (update-grub, grubby, kernel-install), "+
			"or its kernels differ: add %s=%s to the kernel command line yourself", t.Name, target.Addr, t.Value)
	case target.Kind == sepolicy.KindLabels:
		return t.Name + ": there is no such file here, or it has no label"
	case target.Kind == optionfile.Kind:
		return fmt.Sprintf("%s: there is no directory for %s, or the file is not of bulkhead's making", t.Name,
			optionfile.File(target))
	case sepolicy.NamePrefix(target.Kind) != "":
		return t.Name + ": there is no policy store of SELinux here, or it cannot be read"
	case target.Kind == service.KindSetting && !in.Facts.Systemd:
		return t.Name + ": no systemd runs here: write it into the init script of the service, or for logins into " +
			"/etc/security/limits.conf"
	case target.Kind == service.KindSetting && service.Since(target) > 0:
		return fmt.Sprintf("%s: there is no %s here, or its systemd is older than %d", t.Name, service.Unit(target),
			service.Since(target))
	case target.Kind == service.KindSetting:
		return t.Name + ": there is no " + service.Unit(target) + " here"
	}
	return "this kernel has no " + t.Name + ", or it cannot be read"
}

// GiveTuningBack writes what was there before, of what is not wanted any more: first the files, so that a boot in
// between does not set it again. The text of a file that somebody else wrote comes back once nothing of it is wanted.
func GiveTuningBack(in *plan.Input, out *plan.Plan, wanted []plan.Wanted, why string) {
	before := in.Observed.Originals.Tuned
	whole := wholeFiles(before)
	for _, target := range slices.SortedFunc(maps.Keys(before), whole.after) {
		now, known := in.Observed.Held(target)
		was := before[target]
		if holder, is := whole[tunable.InFile(target)]; is && (holder != target || holdsAny(wanted, target)) {
			was = "" // its line goes, and with the last one the text comes back
			if tunable.IsForeign(now) {
				continue
			}
		}
		if slices.ContainsFunc(wanted, func(w plan.Wanted) bool { return w.Target == target }) ||
			known && tunable.Same(target, was, now) && !comesBackWith(target, was, out.Steps) {
			continue
		}
		if text := stays(in, target, now, known); text != "" {
			out.Notes = append(out.Notes, plan.Note{Key: policy.Key("host.tune." + tunable.Name(target)),
				NotEnforced: true, Text: text})
			continue
		}
		if !known {
			continue
		}
		out.Steps = append(out.Steps, plan.Step{Change: change.Of(target, now, was), Reason: why})
		counts(target, was, policy.Key("host.tune."+tunable.Name(target)), out)
	}
}

// foreignFiles are the files of several settings that somebody else had written, each with the setting whose value
// before was its text; of several the first by name.
type foreignFiles map[string]change.Target

func wholeFiles(before map[change.Target]string) foreignFiles {
	files := foreignFiles{}
	for _, t := range slices.SortedFunc(maps.Keys(before), byAddr) {
		file := tunable.InFile(t)
		if _, is := files[file]; file != "" && !is && tunable.IsForeign(before[t]) {
			files[file] = t
		}
	}
	return files
}

// after orders targets as byAddr does, but those of the texts of files after all others that are files.
func (f foreignFiles) after(a, b change.Target) int {
	holds := func(t change.Target) int {
		if file := tunable.InFile(t); file != "" && f[file] == t {
			return 1
		}
		return 0
	}
	return cmp.Or(atBoot(a)-atBoot(b), holds(a)-holds(b), byAddr(a, b))
}

// holdsAny says whether a setting is wanted of the file that a target is in.
func holdsAny(wanted []plan.Wanted, t change.Target) bool {
	file := tunable.InFile(t)
	return slices.ContainsFunc(wanted, func(w plan.Wanted) bool { return tunable.InFile(w.Target) == file })
}

// stays says why a setting is not given back: it cannot be read, or one of SELinux is another by now that somebody else
// set. Labels of files are given back one by one.
func stays(in *plan.Input, t change.Target, now string, known bool) string {
	wrote, told := in.Observed.Originals.Wrote[t]
	switch {
	case !known && t.Kind == bootline.KindArgument:
		return fmt.Sprintf("%s stays as it is: the kernels of this host have different values of it, or no boot "+
			"loader is known here now. Before it was %q: give it that yourself", tunable.Name(t),
			in.Observed.Originals.Tuned[t])
	case !known && t.Kind == optionfile.Kind:
		return fmt.Sprintf("%s stays as it is: its directory is gone, or the file is not of bulkhead's making any "+
			"more; look there", tunable.Name(t))
	case !ofSELinux(t):
	case !known:
		return tunable.Name(t) + " cannot be read, and stays as it is: it is not there any more, or SELinux has no " +
			"policy here now"
	case told && t.Kind != sepolicy.KindLabels && !tunable.Same(t, wrote, now):
		return fmt.Sprintf("%s is %q, which somebody else has set since; it stays. bulkhead had set %q, and %q was "+
			"there before", tunable.Name(t), now, wrote, in.Observed.Originals.Tuned[t])
	}
	return ""
}

// counts notes from when on a value of a target counts.
func counts(t change.Target, value string, key policy.Key, out *plan.Plan) {
	if text := tunable.Counts(t, value); text != "" {
		out.Notes = append(out.Notes, plan.Note{Key: key, Text: text})
	}
}

// comesBackWith says whether a value goes with a scheduler that steps give back: that brings what it held last, which
// may be of bulkhead's, too.
func comesBackWith(t change.Target, value string, steps []plan.Step) bool {
	scheduler, follows := tunable.FollowsScheduler(t)
	return follows && slices.ContainsFunc(steps, func(s plan.Step) bool {
		return s.Target == scheduler && tunable.SuitsScheduler(value, tunable.HumanValue(s.New))
	})
}

func byName(a, b policy.Tuning) int {
	return strings.Compare(tunable.OrderKey(a.Name), tunable.OrderKey(b.Name))
}

// byAddr puts what lies in /etc before others.
func byAddr(a, b change.Target) int {
	return cmp.Or(atBoot(a)-atBoot(b), strings.Compare(tunable.OrderKey(a.Addr), tunable.OrderKey(b.Addr)))
}

// atBoot is 0 of what lies in /etc, and 1 of others.
func atBoot(t change.Target) int {
	if slices.Contains([]change.Kind{tunable.KindBootFile, service.KindSetting, mounted.KindListed,
		optionfile.Kind, sepolicy.KindContext, sepolicy.KindBoolean}, t.Kind) {
		return 0
	}
	return 1
}
