package classify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/classify/matchkey"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"

	"pgregory.net/rapid"
)

// drawProcess and drawMatch make small worlds in which rules often match.
func drawProcess(pid int) *rapid.Generator[procfs.Process] {
	return rapid.Custom(func(t *rapid.T) procfs.Process {
		exe := rapid.SampledFrom([]string{"/bin/a", "/bin/b", "/opt/c", ""}).Draw(t, "exe")
		p := proc(pid, exe)
		p.PPID = rapid.IntRange(0, 12).Draw(t, "ppid")
		p.UID = rapid.SampledFrom([]int{0, 1005, 102}).Draw(t, "uid")
		p.GID = rapid.SampledFrom([]int{0, 1005}).Draw(t, "gid")
		p.Args = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "-bash", "x y", ""}), 0, 3).Draw(t, "args")
		p.State = rapid.SampledFrom([]byte("SSSZ")).Draw(t, "state")
		p.Cgroups = map[string]string{"cpu": rapid.SampledFrom([]string{"/", "/s/u.service", "/docker/x"}).Draw(t,
			"cgroup")}
		return p
	})
}

func drawMatch() *rapid.Generator[policy.Match] {
	return rapid.Custom(func(t *rapid.T) policy.Match {
		maybe := func(name string, values ...string) string {
			return rapid.SampledFrom(append(values, "", "")).Draw(t, name)
		}
		m := policy.Match{
			Exe: maybe("exe", "a", "b", "/bin/*"), User: maybe("user", "report", "102", "root"),
			UnixGroup: maybe("unix_group", "report"),
			Cmdline:   maybe("cmdline", "a", "x y", "bash$"), Cgroup: maybe("cgroup", "/s/"),
			Ancestor: maybe("ancestor", "a", "c"),
		}
		if rapid.Bool().Draw(t, "except") {
			m.Except = []policy.Match{{Exe: "b"}}
		}
		if matchkey.Score(&m) == 0 {
			m.User = "report"
		}
		return m
	})
}

// drawWorld makes groups, some of them nested, and a look at a host.
func drawWorld(t *rapid.T) ([]*policy.Group, Input) {
	var groups []*policy.Group
	for n := range rapid.IntRange(1, 5).Draw(t, "groups") {
		g := group(fmt.Sprint("g", n), n*20, rapid.SliceOfN(drawMatch(), 0, 3).Draw(t, "match")...)
		if rapid.Bool().Draw(t, "nested") {
			g.Groups = []*policy.Group{group("in", n*20+10, rapid.SliceOfN(drawMatch(), 0, 2).Draw(t, "inner")...)}
		}
		groups = append(groups, g)
	}
	var procs []procfs.Process
	for pid := range rapid.IntRange(1, 10).Draw(t, "processes") {
		procs = append(procs, drawProcess(pid+1).Draw(t, "process"))
	}
	in := input(procs...)
	in.Self = procfs.ID{PID: 3, Start: 30}
	if rapid.Bool().Draw(t, "pinned") {
		in.Pins = map[procfs.ID]string{{PID: 2, Start: 20}: "g0"}
	}
	return groups, in
}

// outcome is what a classification says, without the order of the groups.
func outcome(r Result) string {
	var b strings.Builder
	for _, p := range r.Placements {
		fmt.Fprintln(&b, p.Process.PID, p.Group, p.By, p.Rule, p.Pos, p.Score)
	}
	for _, s := range r.Skips {
		fmt.Fprintln(&b, s.Process.PID, s.Group, s.Reason)
	}
	for _, p := range r.Problems {
		fmt.Fprintln(&b, p.Pos, p.Msg, p.Hint, p.Also)
	}
	return b.String()
}

func expandAny(t *rapid.T, groups []*policy.Group) []Group {
	made, problems := Expand(&policy.Policy{Groups: groups}, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return made
}

// The order of processes, of groups and of the rules in a group changes nothing.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups, in := drawWorld(t)
		want := outcome(Classify(expandAny(t, groups), in))
		in.Processes = rapid.Permutation(in.Processes).Draw(t, "order of processes")
		shuffled := rapid.Permutation(groups).Draw(t, "order of groups")
		for i, g := range shuffled {
			other := *g
			other.Match = rapid.Permutation(g.Match).Draw(t, "order of rules")
			shuffled[i] = &other
		}
		if got := outcome(Classify(expandAny(t, shuffled), in)); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// A rule that matches nothing moves nothing, wherever it is put.
func TestUnrelatedRuleMovesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups, in := drawWorld(t)
		want := outcome(Classify(expandAny(t, groups), in))
		m := drawMatch().Draw(t, "more")
		m.Exe = "not-there"
		m.Pos = policy.Pos{File: "p.yaml", Line: 500}
		n := rapid.IntRange(0, len(groups)-1).Draw(t, "where")
		if rapid.Bool().Draw(t, "own group") {
			groups = slices.Insert(groups, n, &policy.Group{Name: "more", Match: []policy.Match{m}})
		} else {
			groups[n].Match = append(groups[n].Match, m)
		}
		if got := outcome(Classify(expandAny(t, groups), in)); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// Whatever the rules are: nobody is placed twice, nobody who must not be moved is placed, and what Explain
// says matched is what Classify went by.
func TestClassifyInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policyGroups, in := drawWorld(t)
		groups := expandAny(t, policyGroups)
		result := Classify(groups, in)
		l := newLook(in)
		seen := make(map[procfs.ID]bool)
		for _, p := range result.Placements {
			if seen[p.Process.ID] {
				t.Fatalf("process %d is placed twice", p.Process.PID)
			}
			seen[p.Process.ID] = true
			if why := l.protected(l.byPID[p.Process.PID]); why != "" {
				t.Fatalf("process %d is placed though %s", p.Process.PID, why)
			}
			if p.By == ByPin {
				continue
			}
			attempts, err := Explain(groups, in, p.Process.PID)
			if err != nil {
				t.Fatal(err)
			}
			best := 0
			for _, a := range attempts {
				if a.Matched {
					best = max(best, a.Score)
				}
			}
			if best != p.Score {
				t.Fatalf("process %d is placed with score %d, and a rule of %d matches it", p.Process.PID, p.Score,
					best)
			}
		}
		for _, s := range result.Skips {
			if seen[s.Process.ID] {
				t.Fatalf("process %d is placed and skipped", s.Process.PID)
			}
		}
	})
}
