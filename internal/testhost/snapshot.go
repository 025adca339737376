package testhost

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// knobFiles matches the files whose content is somebody's decision and not a counter.
var knobFiles = regexp.MustCompile(`^(` + strings.Join([]string{
	`cpu\.(shares|idle|cfs_(quota|period|burst)_us|rt_(runtime|period)_us|weight|max|max\.burst|uclamp\.(min|max))`,
	`cpuset\.(cpus|mems|cpus\.partition|memory_migrate|cpu_exclusive|mem_exclusive|mem_hardwall|sched_load_balance)`,
	`memory\.((soft_|memsw\.)?limit_in_bytes|swappiness|oom_control|use_hierarchy|move_charge_at_immigrate)`,
	`memory\.(min|low|high|max|swap\.max|swap\.high|oom\.group)`,
	`blkio\..*_device|blkio\.(bfq\.)?weight|io\.(max|weight|latency|bfq\.weight)`,
	`pids\.max`,
	`hugetlb\..*\.(limit_in_bytes|max)`,
	`freezer\.state|devices\.list|net_cls\.classid|net_prio\.ifpriomap`,
	`cgroup\.(freeze|type|subtree_control|max\.depth|max\.descendants|pressure|clone_children)|notify_on_release`,
}, "|") + `)$`)

// Snapshot is the state of the groups at and below a test root as text: every directory of every hierarchy,
// the value of each knob, and the groups in which the given processes are, wherever that is. Two equal
// texts are two equal states. It works on a live tree and on a model of one.
func Snapshot(t testing.TB, tree *cgroup.Tree, root string, processes ...procfs.ID) string {
	t.Helper()
	var b strings.Builder
	hierarchies := tree.Hierarchies()
	slices.SortFunc(hierarchies, func(a, b host.Hierarchy) int { return strings.Compare(a.ID, b.ID) })
	for _, h := range hierarchies {
		top := cgroup.Dir{Hierarchy: h.ID, Path: path.Join("/", root)}
		dirs, err := tree.Walk(top)
		if err != nil && !errors.Is(err, cgroup.ErrGone) {
			t.Fatalf("snapshot %s: %v", top, err)
		}
		for _, d := range dirs {
			knobs(t, &b, tree, d)
		}
	}
	for _, h := range hierarchies {
		members(t, &b, tree, h, processes)
	}
	return b.String()
}

// knobs writes the knobs of one directory.
func knobs(t testing.TB, b *strings.Builder, tree *cgroup.Tree, d cgroup.Dir) {
	t.Helper()
	files, err := tree.Files(d)
	if err != nil {
		t.Fatalf("snapshot %s: %v", d, err)
	}
	names := slices.DeleteFunc(files, func(name string) bool { return !knobFiles.MatchString(name) })
	values, err := tree.ReadMany(d, names)
	if err != nil {
		t.Fatalf("snapshot %s: %v", d, err)
	}
	fmt.Fprintf(b, "[%s]\n", d)
	for _, name := range names {
		lines := strings.Split(values[name], "\n")
		if name == "memory.oom_control" {
			lines = lines[:1] // the rest counts
		}
		if strings.HasPrefix(name, "hugetlb.") && (lines[0] == "max" || len(lines[0]) == len("9223372036854771712")) {
			// A fresh limit reads as a number, the same limit once it was written as another or as "max"
			// (measured on 6.18): all of them are no limit.
			lines = []string{"no limit"}
		}
		slices.Sort(lines)
		fmt.Fprintf(b, "%s = %s\n", name, strings.Join(lines, " | "))
	}
}

// members writes where the processes are in one hierarchy.
func members(t testing.TB, b *strings.Builder, tree *cgroup.Tree, h host.Hierarchy, processes []procfs.ID) {
	t.Helper()
	if len(processes) == 0 {
		return
	}
	at := where(t, tree, h)
	for _, p := range processes {
		// On v1, cgroup.procs leaves out processes while others fork beside them: one that lives is somewhere.
		for tries := 0; at[p.PID] == "" && tries < 50 && host.New("/").Proc.Alive(p); tries++ {
			at = where(t, tree, h)
		}
		fmt.Fprintf(b, "process %d in %s: %s\n", p.PID, h.ID, cmp.Or(at[p.PID], "nowhere"))
	}
}

// where reads the group of every process in one hierarchy.
func where(t testing.TB, tree *cgroup.Tree, h host.Hierarchy) map[int]string {
	t.Helper()
	dirs, err := tree.Walk(cgroup.Dir{Hierarchy: h.ID, Path: "/"})
	if err != nil {
		t.Fatalf("snapshot %s: %v", h.ID, err)
	}
	at := make(map[int]string)
	for _, d := range dirs {
		pids, err := tree.Procs(d)
		if errors.Is(err, cgroup.ErrGone) || errors.Is(err, cgroup.ErrInvalid) {
			continue // vanished, or a threaded group of somebody else
		}
		if err != nil {
			t.Fatalf("snapshot %s: %v", d, err)
		}
		for _, pid := range pids {
			at[pid] = d.Path
		}
	}
	return at
}
