package planner

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

func TestLayout(t *testing.T) {
	weight := settings("group", "cpu.weight", policy.Weight(10))
	memory := settings("group", "memory.max", policy.Bytes(1<<30))
	read := settings("group", "io.read.bandwidth@8:0", policy.Rate(1<<20))
	huge := settings("group", "memory.huge@2MB", policy.Bytes(2<<20))
	lifted := settings("group", "memory.max", policy.Unlimited{})
	swappy := settings("group", "memory.swappiness", policy.Count(1))
	type groups = map[string]policy.Settings
	for name, test := range map[string]struct {
		host   string
		groups groups
		dirs   string            // of hierarchies other than cpu and cpuacct, below our root
		member map[string]string // group → where its processes sit, as the directories
	}{
		"nothing asked: cpu and cpuacct alone": {"v1", groups{"a": nil, "a/x": nil}, "", map[string]string{
			"a": "cpu:/a/db cpuacct:/a/db", "a/x": "cpu:/a/x cpuacct:/a/x",
		}},
		"a limit on the parent takes the child along": {"v1", groups{"a": memory, "a/x": weight, "b": nil},
			"memory:/ memory:/a memory:/a/db memory:/a/x", map[string]string{
				"a": "cpu:/a/db cpuacct:/a/db memory:/a/db", "a/x": "cpu:/a/x cpuacct:/a/x memory:/a/x",
				"b": "cpu:/b cpuacct:/b",
			}},
		"a limit on the child takes the parent along, not the sibling": {"v1",
			groups{"a": nil, "a/x": memory, "a/y": nil}, "memory:/ memory:/a memory:/a/db memory:/a/x",
			map[string]string{
				"a": "cpu:/a/db cpuacct:/a/db memory:/a/db", "a/y": "cpu:/a/y cpuacct:/a/y",
			}},
		"flat: members sit with the limit": {"v1", groups{"a": read, "a/x": nil, "a/x/p": nil}, "blkio:/ blkio:/a",
			map[string]string{
				"a": "blkio:/a cpu:/a/db cpuacct:/a/db", "a/x": "blkio:/a cpu:/a/x/db cpuacct:/a/x/db",
				"a/x/p": "blkio:/a cpu:/a/x/p cpuacct:/a/x/p",
			}},
		"flat: a child with its own limit has its own directory": {"v1", groups{"a": read, "a/x": read, "a/y": nil},
			"blkio:/ blkio:/a blkio:/a/x", map[string]string{
				"a": "blkio:/a cpu:/a/db cpuacct:/a/db", "a/x": "blkio:/a/x cpu:/a/x cpuacct:/a/x",
				"a/y": "blkio:/a cpu:/a/y cpuacct:/a/y",
			}},
		"flat: a parent without a limit is only a path": {"v1", groups{"a": nil, "a/x": read},
			"blkio:/ blkio:/a blkio:/a/x", map[string]string{
				"a": "cpu:/a/db cpuacct:/a/db", "a/x": "blkio:/a/x cpu:/a/x cpuacct:/a/x",
			}},
		"io descends on v2": {"v2", groups{"a": read, "a/x": nil}, "",
			map[string]string{"a": "unified:/a/db", "a/x": "unified:/a/x"}},
		"hybrid: cgroup2 only where its controllers are asked for": {"hybrid", groups{"a": huge, "b": nil},
			"unified:/ unified:/a", map[string]string{
				"a": "cpu:/a cpuacct:/a unified:/a", "b": "cpu:/b cpuacct:/b",
			}},
		"co-mounted":           {"v1 co-mounted", groups{"a": nil}, "", map[string]string{"a": "cpu,cpuacct:/a"}},
		"max asks for nothing": {"v1", groups{"a": lifted}, "", map[string]string{"a": "cpu:/a cpuacct:/a"}},
		"swappiness is copied, and so reaches the children": {"v1", groups{"a": swappy, "a/x": nil},
			"memory:/ memory:/a memory:/a/db memory:/a/x", map[string]string{
				"a": "cpu:/a/db cpuacct:/a/db memory:/a/db",
			}},
	} {
		t.Run(name, func(t *testing.T) {
			f := hosts[test.host]()
			in := input(f)
			for _, path := range slices.Sorted(maps.Keys(test.groups)) {
				in.Classified.Groups = append(in.Classified.Groups, group(path, test.groups[path]))
			}
			l := layout.New(f, layout.Names{Root: nested.Root},
				layout.NewForest(f, nested, groupsOf(in.Classified.Groups...).Groups), nil)
			if got := shorten(l.Dirs(), "cpu", "cpuacct", "cpu,cpuacct"); test.host != "v2" && got != test.dirs {
				t.Errorf("directories %q, want %q", got, test.dirs)
			}
			for group, want := range test.member {
				if got := shorten(slices.Collect(maps.Values(l.Member(group)))); got != want {
					t.Errorf("%s sits in %q, want %q", group, got, want)
				}
			}
			if len(l.Member(layout.RootGroup)) > 0 {
				t.Errorf("our root group holds processes in %v", l.Member(layout.RootGroup))
			}
			seen := map[cgroup.Dir]bool{}
			for _, d := range l.Dirs() {
				if seen[d] || d.Path != "/bulkhead" && !seen[d.Parent()] {
					t.Errorf("%s comes twice or before its parent in %v", d, l.Dirs())
				}
				seen[d] = true
			}
		})
	}
}

// shorten prints directories without our root, leaving out hierarchies.
func shorten(dirs []cgroup.Dir, without ...string) string {
	var all []string
	for _, d := range dirs {
		if !slices.Contains(without, d.Hierarchy) {
			d.Path = "/" + strings.TrimPrefix(strings.TrimPrefix(d.Path, "/bulkhead"), "/")
			all = append(all, d.String())
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestGroupOfADirectory(t *testing.T) {
	l := layout.New(cpuOnly(), layout.Names{Root: "dbs", Former: []string{"", "old"}},
		layout.NewForest(cpuOnly(), policy.HostPart{}, nil), nil)
	for path, want := range map[string]string{
		"/dbs": "", "/dbs/db": "", "/dbs/a": "a", "/dbs/a/db": "a", "/dbs/a/x": "a/x", "/dbs/a/x/db": "a/x",
		"/": "outside", "/dbsx": "outside", "/x/dbs": "outside", "/bulkhead": "outside",
		"/bulkhead.a": "a", "/bulkhead.a/db": "a", "/bulkhead.a/x/db": "a/x", "/bulkhead.": "outside", "/old": "",
		"/old/a": "a",
	} {
		got, ok := l.Group(cgroup.Dir{Hierarchy: "cpu", Path: path})
		if !ok {
			got = "outside"
		}
		if got != want {
			t.Errorf("%s belongs to %q, want %q", path, got, want)
		}
	}
}

// Without a root group outermost groups stand side by side at the top of each hierarchy, with nothing of ours above
// them.
func TestFlatLayout(t *testing.T) {
	weight := settings("role database", "cpu.weight", policy.Weight(1000))
	groups := groupsOf(group("a", weight), group("a/x", nil),
		group("b", settings("group", "tasks", policy.Count(50)))).Groups
	// A cgroup2 beside v1 holds no limit. Where the kernel counts how long tasks wait, each group has a directory
	// there.
	hybrid := factsWith(v1("pids"), v2())
	waiting := factsWith(v1("pids"), v2())
	waiting.Pressure = true
	for name, test := range map[string]struct {
		facts   *host.Facts
		systemd *layout.Systemd
		want    string
	}{
		"v1": {factsWith(v1("cpu"), v1("cpuacct"), v1("pids")), nil,
			"cpu:/bulkhead.a cpu:/bulkhead.a/db cpu:/bulkhead.a/x " +
				"cpuacct:/bulkhead.a cpuacct:/bulkhead.a/db cpuacct:/bulkhead.a/x cpuacct:/bulkhead.b " +
				"pids:/bulkhead.b"},
		"hybrid, nothing waits": {hybrid, nil, "pids:/bulkhead.b"},
		"hybrid": {waiting, nil, "pids:/bulkhead.b " +
			"unified:/bulkhead.a unified:/bulkhead.a/db unified:/bulkhead.a/x unified:/bulkhead.b"},
		"v2": {unifiedHost(), nil,
			"unified:/bulkhead.a unified:/bulkhead.a/db unified:/bulkhead.a/x unified:/bulkhead.b"},
		"systemd": {systemdHosts["unified"](), &layout.Systemd{Version: systemd.Version{Number: 252}},
			"unified:/bulkhead.a.slice " +
				"unified:/bulkhead.a.slice/bulkhead.a-x.slice " +
				"unified:/bulkhead.a.slice/bulkhead.a-x.slice/bulkhead.a-x.service " +
				"unified:/bulkhead.a.slice/bulkhead.a-x.slice/bulkhead.a-x.service/members " +
				"unified:/bulkhead.a.slice/bulkhead.a.service unified:/bulkhead.a.slice/bulkhead.a.service/members " +
				"unified:/bulkhead.b.slice unified:/bulkhead.b.slice/bulkhead.b.service " +
				"unified:/bulkhead.b.slice/bulkhead.b.service/members"},
	} {
		t.Run(name, func(t *testing.T) {
			l := layout.New(test.facts, layout.Names{}, layout.NewForest(test.facts, policy.HostPart{}, groups),
				test.systemd)
			var got []string
			for _, d := range l.Dirs() {
				got = append(got, d.String())
				if group, ok := l.Group(d); !ok || group == layout.RootGroup {
					t.Errorf("%s belongs to %q, %v", d, group, ok)
				}
			}
			slices.Sort(got)
			if all := strings.Join(got, " "); all != test.want {
				t.Errorf("directories\n%s\nwant\n%s", all, test.want)
			}
		})
	}
}

// The roles' own settings need directories where the CPU is shared and where it is counted, and nowhere else.
func TestPlacesOfPlainRoles(t *testing.T) {
	role := func(path string, weight policy.Weight) classify.Group {
		return group(path, settings("role", "cpu.weight", weight, "io.weight", weight))
	}
	in := input(legacyHost(), role("a", 1000), role("b", 10), role("b/c", 1))
	in.Host = policy.HostPart{}
	var made []string
	for _, s := range Make(in).Steps {
		if s.Makes() && !slices.Contains(made, s.Dir().Hierarchy) {
			made = append(made, s.Dir().Hierarchy)
		}
	}
	if want := []string{"cpu", "cpuacct"}; !slices.Equal(made, want) {
		t.Errorf("directories in %v, want %v", made, want)
	}
}
