package plan

import (
	"fmt"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/unitfiles"
)

// changed is a file before and after a plan: the lines of it that the plan writes.
type changed struct {
	path        string
	before, now []string
}

// diff prints what the files hold now against what they will hold, as `diff -u` does. Of a file with a line for each
// device the lines of the devices that change are shown. What is no file stands between, behind a "#", where a program
// that reads differences passes over it: directories, what systemd and the kernel's network are asked for, processes.
func (r *renderer) diff() {
	var asks, after []string
	var files []*changed
	byPath, seen := map[string]*changed{}, map[change.Target]int{}
	for _, s := range r.plan.Steps {
		switch {
		case s.Kind == cgroup.KindDir && s.Makes():
			asks = append(asks, "mkdir "+r.path(s.Dir()))
			continue
		case s.Kind == cgroup.KindDir && s.Removes():
			after = append(after, "rmdir "+r.path(s.Dir()))
			continue
		case s.Kind == request.Kind:
			after = append(after, s.New)
			continue
		case s.Kind == cgroup.KindOwner:
			after = append(after, ownerCommands(s, r.path(s.Dir()))...)
			continue
		case s.Moves(), s.Kind == unitfiles.KindOverrides:
			continue
		}
		path, old, now := r.held(s)
		f := byPath[path]
		if f == nil {
			f = &changed{path: path}
			byPath[path], files = f, append(files, f)
		}
		if at, again := seen[s.Target]; again && len(old) == 1 && len(now) == 1 {
			f.now[at] = now[0] // lowered in steps: what counts is the last one
			continue
		}
		seen[s.Target] = len(f.now)
		f.before, f.now = append(f.before, old...), append(f.now, now...)
	}
	for _, text := range asks {
		r.line("# %s", text)
	}
	for _, f := range files {
		r.fileDiff(f)
	}
	for _, text := range after {
		r.line("# %s", text)
	}
	if moved := r.plan.Count()[""]; moved > 0 {
		r.line("# %s moved", policy.Counted(moved, "process"))
	}
}

// held is the path of what a step writes, and the lines there before and after.
func (r *renderer) held(s Step) (path string, before, now []string) {
	path = s.Addr
	key := ""
	switch file, is := cgroup.NamedFile(s.Target); {
	case is && s.Kind == blockdev.KindQueue:
		_, name, _ := strings.Cut(s.Addr, "/")
		path = blockdev.QueuePath(file.Key, name)
	case is:
		path = r.where(s)
		if s.Kind == cgroup.KindFile && file.Key != "" {
			key = file.Key + " "
		}
	case s.Kind == procfs.KindScore:
		path = fmt.Sprintf("oom_score_adj of process %d", s.PID().PID)
	case s.Kind != unitfiles.KindDropIn && s.Kind != tunable.KindBootFile:
		path = string(s.Kind) + " " + s.Addr
	}
	return path, linesOf(key, s.Old), linesOf(key, s.New)
}

// linesOf are the lines of a value, none of an empty one.
func linesOf(key, value string) []string {
	if value == "" {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(value, "\n"), "\n")
	for i := range lines {
		lines[i] = key + lines[i]
	}
	return lines
}

// fileDiff prints one file, in one hunk: what is the same at its beginning and its end, up to three lines of it, is
// around what differs.
func (r *renderer) fileDiff(f *changed) {
	const context = 3
	head, tail := 0, 0
	most := min(len(f.before), len(f.now))
	for head < most && f.before[head] == f.now[head] {
		head++
	}
	for tail < most-head && f.before[len(f.before)-1-tail] == f.now[len(f.now)-1-tail] {
		tail++
	}
	if head == len(f.before) && head == len(f.now) {
		return
	}
	from, behind := max(0, head-context), max(0, tail-context)
	name := func(lines []string) string {
		if len(lines) == 0 {
			return "/dev/null"
		}
		return f.path
	}
	r.line("--- %s", name(f.before))
	r.line("+++ %s", name(f.now))
	r.line("@@ -%s +%s @@", span(from, len(f.before)-behind), span(from, len(f.now)-behind))
	for _, text := range f.before[from:head] {
		r.line(" %s", text)
	}
	for _, text := range f.before[head : len(f.before)-tail] {
		r.line("-%s", text)
	}
	for _, text := range f.now[head : len(f.now)-tail] {
		r.line("+%s", text)
	}
	for _, text := range f.now[len(f.now)-tail : len(f.now)-behind] {
		r.line(" %s", text)
	}
}

// span is where lines stand that are counted from 0, as a hunk says it: the first one and how many.
func span(from, to int) string {
	switch n := to - from; n {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprint(from + 1)
	default:
		return fmt.Sprintf("%d,%d", from+1, n)
	}
}
