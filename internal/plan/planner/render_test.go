package planner

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden holds text against testdata/<name>.txt.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; run go test -update", err)
	}
	if text != string(want) {
		t.Errorf("%s differs:\n%s\nwant:\n%s", file, text, want)
	}
}

// theHost is two instances with a backup, and a batch group, on any host.
func theHost(in *plan.Input) {
	role := func(role string, pairs ...any) policy.Settings { return settings("role "+role, pairs...) }
	in.Host = policy.HostPart{Root: "bulkhead", Weight: 10000,
		Reserve: policy.Reserve{CPU: policy.One / 2, Memory: policy.Bytes(1 << 30)},
		Pos:     policy.Pos{File: "/etc/bulkhead/policy.yaml", Line: 3}}
	database := role("database", "cpu.weight", policy.Weight(1000)).With(
		policy.Setting{Key: "memory.max", Value: policy.Bytes(6 << 30), Raw: "37.5%", From: "class standard",
			Pos: policy.Pos{File: "/etc/bulkhead/policy.yaml", Line: 8}})
	in.Classified = groupsOf(
		group("mysql3306", database.With(settings("group", "io.read.bandwidth@8:0", policy.Rate(100e6))[0])),
		group("mysql3306/backup", role("helper", "cpu.weight",
			policy.Weight(10)).With(settings("group", "io.read.bandwidth@8:0", policy.Rate(20e6))[0])),
		group("reports", role("batch", "cpu.weight", policy.Weight(1), "cpu.idle", policy.Flag(true)).With(
			settings("group", "cpu.limit", policy.Cores(1.5e6))[0]).With(settings("group", "memory.high",
			policy.Bytes(2<<30))[0])),
	)
	member(in, proc(1100, 1, "mysqld", in.Facts), "mysql3306")
	member(in, proc(1180, 1100, "mariabackup", in.Facts), "mysql3306/backup")
	in.Observed.Siblings = []plan.Sibling{{Dir: cgroup.Dir{Hierarchy: "cpu", Path: "/"}, Tasks: 2}}
}

func TestRenderGolden(t *testing.T) {
	for name, make := range map[string]func() plan.Input{
		"new tree on v1": func() plan.Input {
			in := input(legacyHost())
			theHost(&in)
			return in
		},
		"new tree on v2": func() plan.Input {
			in := input(unifiedHost())
			theHost(&in)
			return in
		},
		"change": func() plan.Input {
			in := input(legacyHost())
			theHost(&in)
			inPlace(&in)
			root := cgroup.Dir{Hierarchy: "memory", Path: "/bulkhead/mysql3306"}
			inUse(&in).current = map[cgroup.Dir]int64{root: 5 << 30}
			inUse(&in).pinned = map[cgroup.Dir]int64{root: 4 << 30}
			in.Classified.Groups = in.Classified.Groups[:2]
			in.Classified.Groups[0].Settings = in.Classified.Groups[0].Settings.With(settings("override 3",
				"memory.max", policy.Bytes(3<<30))[0]).With(settings("group", "oom_score_adj", policy.Count(-500))[0])
			in.Observed.OOMScoreAdj = map[procfs.ID]int{in.Classified.Placements[0].Process.ID: 0}
			return in
		},
		"nothing": func() plan.Input {
			in := input(comountedHost())
			theHost(&in)
			inPlace(&in)
			return in
		},
		"refused": func() plan.Input {
			in := input(legacyHost())
			theHost(&in)
			in.Observed.Foreign = map[cgroup.Dir]bool{{Hierarchy: "cpu", Path: "/bulkhead"}: true}
			return in
		},
		"release": func() plan.Input {
			in := input(legacyHost())
			theHost(&in)
			inPlace(&in)
			in.Release = []string{"mysql3306"}
			return in
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := make()
			made := Make(in)
			options := plan.RenderOptions{Facts: in.Facts, Root: in.Host.Root}
			text := plan.Render(made, options)
			// An agent's answer says the same as a plan that was made here.
			var answer plan.Plan
			wire, err := json.Marshal(made)
			if err == nil {
				err = json.Unmarshal(wire, &answer)
			}
			if got := plan.Render(answer, options); err != nil || got != text {
				t.Errorf("by an agent: %v\n%s\nwant:\n%s", err, got, text)
			}
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
					t.Errorf("a line is %d wide: %s", n, line)
				}
			}
			golden(t, strings.ReplaceAll(name, " ", "-"), text)
		})
	}
}

func TestRenderNothing(t *testing.T) {
	const want = "nothing to do: the host already is as the policy says\n"
	if got := plan.Render(plan.Plan{}, plan.RenderOptions{}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Without facts a plan can still be printed, with a path of the caller's.
func TestRenderOptions(t *testing.T) {
	shares := cgroup.Dir{Hierarchy: "cpu", Path: "/dbs"}.File("cpu.shares").Target()
	p := plan.Plan{Steps: []plan.Step{{Change: change.Of(shares, "1024", "2048"), Group: layout.RootGroup,
		Reason: "why"}}}
	text := plan.Render(p, plan.RenderOptions{Root: "dbs",
		Path: func(d cgroup.Dir) string { return "/mnt/" + d.Hierarchy + d.Path }})
	for _, want := range []string{"dbs (the root group)", "/mnt/cpu/dbs/cpu.shares", "1024 -> 2048",
		`undo: write "1024"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
}

// manyGroups is 200 groups of 8 knobs with a process each.
func manyGroups() plan.Input {
	in := input(legacyHost())
	for i := range 50 {
		for _, child := range []string{"", "/backup", "/exporter", "/jobs"} {
			path := "mysql" + string(rune('A'+i/26)) + string(rune('a'+i%26)) + child
			in.Classified.Groups = append(in.Classified.Groups, group(path, settings("group",
				"cpu.weight", policy.Weight(1+i), "cpu.limit", policy.Cores(2e6), "cpu.burst", policy.Duration(1e6),
				"memory.max", policy.Bytes(1<<30),
				"memory.swap", policy.Bytes(1<<28), "tasks", policy.Count(500), "io.read.bandwidth@8:0",
				policy.Rate(1e8), "io.write.iops@8:0", policy.IOPS(500))))
		}
	}
	in.Classified = groupsOf(in.Classified.Groups...)
	for i, g := range in.Classified.Groups {
		member(&in, proc(1000+i, 1, "mysqld", in.Facts), g.Path)
	}
	return in
}

// The budget is 20 ms for 200 groups of 8 knobs.
func BenchmarkPlan(b *testing.B) {
	b.Run("new", func(b *testing.B) { benchmarkPlan(b, manyGroups()) })
	b.Run("nothing to do", func(b *testing.B) {
		in := manyGroups()
		inPlace(&in)
		benchmarkPlan(b, in)
	})
	b.Run("release", func(b *testing.B) {
		in := manyGroups()
		inPlace(&in)
		in.Classified, in.Release = classify.Result{}, []string{layout.RootGroup}
		benchmarkPlan(b, in)
	})
}

func benchmarkPlan(b *testing.B, in plan.Input) {
	steps := 0
	for b.Loop() {
		steps = len(Make(in).Steps)
	}
	b.ReportMetric(float64(steps), "steps")
}

// What others named cannot steer the terminal of who reads a plan, nor forge a line of it.
func TestRenderIsPrintable(t *testing.T) {
	const evil = "\x1b[2J\n   1  rmdir"
	f := cpuOnly()
	in := input(f, group("a", nil))
	p := proc(10, 1, evil, f)
	p.Cgroups = map[string]string{"cpu": "/" + evil}
	member(&in, p, "a")
	made := Make(in)
	made.Notes = append(made.Notes, plan.Note{Group: "a", Text: evil})
	made.Refusals = append(made.Refusals, plan.Refusal{Reason: evil, Hint: evil})
	text := plan.Render(made, plan.RenderOptions{Facts: f, Path: func(d cgroup.Dir) string { return d.Path }})
	if strings.Contains(text, "\x1b") || !strings.Contains(text, `\x1b[2J`) {
		t.Errorf("printed raw:\n%s", text)
	}
	if !strings.Contains(text, "process 10") || strings.Contains(text, "\n   1  rmdir") {
		t.Errorf("a line is forged:\n%s", text)
	}
}
