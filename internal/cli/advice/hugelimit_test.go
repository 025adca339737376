package advice

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/fact"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

const hugePage = 2 << 20

// database is an instance of a made-up host with what it takes of the pool.
type database struct {
	engine string
	port   int
	group  string // "" is none
	values map[string]any
}

// hostOf has these instances, and groups of the policy with the settings given.
func hostOf(databases []database, settings map[string]policy.Settings) (*fact.Set, *transaction.View) {
	set := &fact.Set{}
	v := &transaction.View{Snapshot: &snapshot.Snapshot{}, Released: map[string]bool{"given-back": true}}
	for i, d := range databases {
		inst := engine.Instance{Engine: d.engine, Port: d.port, Main: procfs.ID{PID: 100 + i}}
		values := fact.Values{"instance.engine": fact.Known(d.engine, "")}
		for name, is := range d.values {
			values[name] = fact.Known(is, "")
		}
		set.Instances = append(set.Instances, fact.Object{Name: inst.Name(), Values: values})
		v.Instances = append(v.Instances, inst)
		if d.group == "" {
			continue
		}
		v.Classified.Placements = append(v.Classified.Placements,
			classify.Placement{Process: procfs.Process{ID: inst.Main}, Group: d.group})
		if !slices.ContainsFunc(v.Classified.Groups, func(g classify.Group) bool { return g.Path == d.group }) {
			v.Classified.Groups = append(v.Classified.Groups,
				classify.Group{Path: d.group, Settings: settings[d.group]})
		}
	}
	return set, v
}

// A group is limited to what its databases take, with the margin of the pool; where no limit may be set, it is said.
func TestHugeLimits(t *testing.T) {
	large := func(pages, used int64) map[string]any {
		return map[string]any{"instance.large_pages": true, "instance.huge_wanted": pages, "instance.huge_used": used}
	}
	on := func(pages int64) map[string]any {
		return map[string]any{"instance.huge_pages": "try", "instance.huge_wanted": pages}
	}
	by := func(from string) policy.Settings {
		return policy.Settings{{Key: policy.KeyMemoryHuge, On: "2MB", Value: policy.Bytes(hugePage), From: from}}
	}
	for _, tt := range []struct {
		name      string
		databases []database
		settings  map[string]policy.Settings
		limits    string
		notes     string // a part of them
	}{
		{"one percent more than it takes", []database{{"mysql", 3306, "mysql3306", large(1000, 0)}}, nil,
			"mysql3306:memory.huge on 2MiB = 2020MiB", ""},
		{"what it has where that is more", []database{{"mysql", 3306, "mysql3306", large(10, 50*hugePage)}}, nil,
			"mysql3306:memory.huge on 2MiB = 100MiB", ""},
		{"two of one group", []database{{"mysql", 3306, "dbs", large(100, 0)},
			{"postgresql", 5432, "dbs", on(300)}}, nil, "dbs:memory.huge on 2MiB = 808MiB", ""},
		{"who asks for none", []database{{"mysql", 3306, "mysql3306", map[string]any{"instance.large_pages": false,
			"instance.huge_wanted": int64(9)}}, {"redis", 6379, "redis6379", nil}}, nil, "", ""},
		{"in no group", []database{{"mysql", 3306, "", large(10, 0)}}, nil, "",
			"mysql3306 is in no group of the policy"},
		{"in a group that was given back", []database{{"mysql", 3306, "given-back", large(10, 0)}}, nil, "",
			"mysql3306 is in no group of the policy"},
		{"one of two is not known", []database{{"mysql", 3306, "dbs", large(100, 0)}, {"mysql", 3307, "dbs",
			map[string]any{"instance.large_pages": true}}}, nil, "", "of group dbs take is not known"},
		{"the policy has one", []database{{"mysql", 3306, "mysql3306", large(10, 0)}},
			map[string]policy.Settings{"mysql3306": by("p.yaml:3")}, "",
			"group mysql3306 has a memory.huge of the policy"},
		{"tune has one", []database{{"mysql", 3306, "mysql3306", large(10, 0)}},
			map[string]policy.Settings{"mysql3306": by("tune apply MEM-47")}, "mysql3306:memory.huge on 2MiB = 20MiB",
			""},
	} {
		set, v := hostOf(tt.databases, tt.settings)
		limits, notes := hugeLimits(set, v, hugePage)
		var got []string
		for _, l := range limits {
			got = append(got, l.Name+" on "+l.On+" = "+l.Value)
		}
		if text := strings.Join(got, "; "); text != tt.limits {
			t.Errorf("%s: limits %q, want %q", tt.name, text, tt.limits)
		}
		if text := strings.Join(notes, "; "); !strings.Contains(text, tt.notes) || (text == "") != (tt.notes == "") {
			t.Errorf("%s: notes %q, want %q", tt.name, text, tt.notes)
		}
	}
}

// Groups are limited where the kernel refuses pages beyond the limit, and not where it ends the process by SIGBUS.
func TestNoHugeLimits(t *testing.T) {
	mounted := []host.Hierarchy{{ID: "hugetlb", Version: 1, Controllers: []string{"hugetlb"},
		Mount: "/sys/fs/cgroup/hugetlb"}}
	for _, tt := range []struct {
		kernel      string
		hierarchies []host.Hierarchy
		want        string
	}{
		{"5.7.0", mounted, ""}, {"6.18.5", mounted, ""}, {"5.6.19", mounted, "SIGBUS"}, {"6.18.5", nil, "hugetlb"},
	} {
		kernel, err := host.ParseVersion(tt.kernel)
		if err != nil {
			t.Fatal(err)
		}
		f := &host.Facts{Kernel: kernel, Hierarchies: tt.hierarchies, HugePageSizes: []int64{hugePage}}
		if got := noHugeLimits(f); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("kernel %s, %d hierarchies: %q, want %q", tt.kernel, len(tt.hierarchies), got, tt.want)
		}
	}
}

// With the pool come the limits of groups, locked memory and the group for shared memory of those who take pages of it,
// and nothing of those who do not; another rule's change is left as it is.
func TestWhatBelongsToThePool(t *testing.T) {
	on := anything
	on.takers = []string{"mysql3306"}
	on.limits = []state.Tuned{{Name: "mysql3306:memory.huge", On: "2MiB", Value: "280MiB"}}
	pool := advise.Finding{Rule: "MEM-47",
		Change: advise.Change{Class: "sysctl", Key: "vm.nr_hugepages", Value: "139"}}
	lock := func(instance, unit string) advise.Finding {
		return advise.Finding{Rule: "LIM-03", On: []string{instance},
			Change: advise.Change{Class: "unit", Key: "LimitMEMLOCK", Value: "infinity", Unit: unit}}
	}
	shm := advise.Finding{Rule: "MEM-52", On: []string{"mysql3306"},
		Change: advise.Change{Class: "sysctl", Key: shmGroupSysctl, Value: "112"}}
	swap := advise.Finding{Rule: "MEM-01", Change: advise.Change{Class: "sysctl", Key: "vm.swappiness", Value: "1"}}
	found := []advise.Finding{pool, lock("mysql3306", "mysql.service"), lock("cassandra9042", "cassandra.service"), shm,
		swap}

	got := tuningOf(pool, on).with(found, on)
	want := "vm.nr_hugepages = 139; unit mysql.service/LimitMEMLOCK = infinity; vm.hugetlb_shm_group = 112; " +
		"mysql3306:memory.huge = 280MiB"
	if sets := strings.Join(got.Sets, "; "); sets != want || len(got.Besides) > 0 {
		t.Errorf("sets %q, besides %q; want %q", sets, got.Besides, want)
	}
	for _, s := range got.Settings {
		if s.Rule != "MEM-47" { // all of it goes with one rollback
			t.Errorf("%s is of rule %q", s.Name, s.Rule)
		}
	}
	if other := tuningOf(swap, on).with(found, on); len(other.Sets) != 1 {
		t.Errorf("the change of another rule sets %q", other.Sets)
	}
	got = tuningOf(pool, on).with([]advise.Finding{pool, lock("mysql3306", "")}, on)
	if len(got.Besides) != 1 || !strings.HasPrefix(got.Besides[0], "mysql3306: LimitMEMLOCK = infinity") {
		t.Errorf("a database of no service: besides %q", got.Besides)
	}
}

// vm.hugetlb_shm_group is one number for the host: who has it keeps it, and two who want it are told so.
func TestShmGroupTaken(t *testing.T) {
	f := advise.Finding{Rule: "MEM-52", On: []string{"mysql3306"},
		Change: advise.Change{Class: "sysctl", Key: shmGroupSysctl, Value: "112"}}
	for _, tt := range []struct {
		is    int64
		asked []string
		want  string
	}{
		{0, []string{"112"}, ""},
		{27, []string{"112"}, "vm.hugetlb_shm_group is 27 already"},
		{0, []string{"112", "113"}, "databases with the groups 112, 113 want it"},
	} {
		on := anything
		on.shmGroup, on.shmGroups = tt.is, tt.asked
		got := tuningOf(f, on)
		if !strings.HasPrefix(got.ByHand, tt.want) || (got.ByHand == "") != (tt.want == "") ||
			(len(got.Sets) == 0) != (tt.want != "") {
			t.Errorf("it is %d, %q want it: by hand %q, sets %q", tt.is, tt.asked, got.ByHand, got.Sets)
		}
	}
}
