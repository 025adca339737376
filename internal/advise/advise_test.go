package advise

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
)

func library(t testing.TB) *rule.Set {
	t.Helper()
	set, err := rule.Library()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// set makes facts from their names and values; instances are of one name.
func set(t testing.TB, from map[string]any) *fact.Set {
	t.Helper()
	s := &fact.Set{Host: fact.Values{}}
	objects := map[fact.Scope]fact.Values{fact.Host: s.Host}
	put := func(name string, is any) {
		row, known := fact.Find(name)
		if !known {
			t.Fatalf("a fixture has %s, which is no fact", name)
		}
		if objects[row.Scope()] == nil {
			objects[row.Scope()] = fact.Values{}
		}
		objects[row.Scope()][name] = fact.Known(is, "fixture")
	}
	for name, is := range from {
		switch v := is.(type) {
		case int:
			put(name, int64(v))
		case []any:
			list := []string{}
			for _, one := range v {
				list = append(list, fmt.Sprint(one))
			}
			put(name, list)
		case string:
			if name == "instance" {
				engine, version, _ := strings.Cut(v, "@")
				put("instance.engine", engine)
				put("instance.version", version)
				continue
			}
			put(name, v)
		default:
			put(name, v)
		}
	}
	for scope, list := range map[fact.Scope]*[]fact.Object{fact.Disk: &s.Disks, fact.Mount: &s.Mounts,
		fact.Instance: &s.Instances} {
		if objects[scope] != nil {
			*list = []fact.Object{{Name: "one", Values: objects[scope]}}
		}
	}
	return s
}

// Every rule is found on what breaks it and passes on what keeps it, and lacks of facts are never findings.
func TestEveryRule(t *testing.T) {
	text, err := os.ReadFile("testdata/fixtures.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var fixtures map[string]struct{ Bad, Good map[string]any }
	if err := yaml.Unmarshal(text, &fixtures); err != nil {
		t.Fatal(err)
	}
	for _, r := range library(t).Rules {
		f, has := fixtures[r.ID]
		if !has {
			t.Errorf("%s has no fixture", r.ID)
			continue
		}
		delete(fixtures, r.ID)
		only := &rule.Set{Rules: []*rule.Rule{r}}
		bad := Run(only, set(t, f.Bad), Options{})
		if len(bad.Findings) != 1 || strings.Contains(bad.Findings[0].Means, "unknown") ||
			bad.Findings[0].Severity != r.Severity {
			t.Errorf("%s on what breaks it: %+v", r.ID, bad)
		}
		both := maps.Clone(f.Bad)
		maps.Copy(both, f.Good)
		if good := Run(only, set(t, both), Options{}); len(good.Findings) > 0 || len(good.Passed) != 1 {
			t.Errorf("%s on what keeps it: %+v", r.ID, good)
		}
		undecided := false
		for name := range both {
			less := maps.Clone(both)
			delete(less, name)
			got := Run(only, set(t, less), Options{})
			if len(got.Findings) > 0 {
				t.Errorf("%s without %s: %+v", r.ID, name, got.Findings)
			}
			undecided = undecided || len(got.Undecided) > 0
		}
		// Without any fact an object is still there.
		bare := map[string]any{"disk.kind": "", "mount.type": "", "instance.uid": 0}
		if engine, named := f.Bad["instance"]; named {
			bare["instance"] = engine
		}
		none := set(t, bare)
		if got := Run(only, none, Options{}); !undecided && len(got.Undecided) == 0 {
			t.Errorf("%s is not undecided without its facts: %+v", r.ID, got)
		}
	}
	for id := range fixtures {
		t.Errorf("there is no rule %s for its fixture", id)
	}
}

func instances(s *fact.Set, list ...string) *fact.Set {
	for _, text := range list {
		engine, version, _ := strings.Cut(text, "@")
		s.Instances = append(s.Instances, fact.Object{Name: engine, Values: fact.Values{
			"instance.engine": fact.Known(engine, "x"), "instance.version": fact.Known(version, "x"),
			"instance.buffer": fact.Known(int64(len(engine))<<30, "x"), "instance.thp_off": fact.Known(false, "x"),
		}})
	}
	return s
}

// Where two engines want what one host cannot give both, one value is chosen and the loser is named.
func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		id, fact  string
		is        any
		instances []string
		severity  string
		value     string
		losers    string
	}{
		{"MEM-12", "host.thp", "always", []string{"mongodb@8.0", "postgresql@17"}, "high", "madvise", "mongodb"},
		{"MEM-12", "host.thp", "madvise", []string{"mongodb@8.0", "postgresql@17"}, "info", "", "mongodb"},
		{"MEM-12", "host.thp", "always", []string{"mongodb@7.0", "postgresql@17"}, "high", "never", ""},
		{"MEM-10", "host.overcommit", int64(2), []string{"redis@7.0", "mysql@8.4"}, "high", "1", ""},
		{"MEM-10", "host.overcommit", int64(0), []string{"redis@7.0", "postgresql@17"}, "high", "1", ""},
		{"MEM-01", "host.swappiness", int64(60), []string{"mysql@8.4", "redis@7.0"}, "medium", "1", ""},
	} {
		r, _ := library(t).Find(c.id)
		s := instances(&fact.Set{Host: fact.Values{c.fact: fact.Known(c.is, "x"),
			"host.swap": fact.Known(int64(1), "x")}}, c.instances...)
		rep := Run(&rule.Set{Rules: []*rule.Rule{r}}, s, Options{})
		if len(rep.Findings) != 1 {
			t.Errorf("%s with %v: %+v", c.id, c.instances, rep)
			continue
		}
		f := rep.Findings[0]
		var losers []string
		for _, l := range f.Losers {
			losers = append(losers, l.Instance)
		}
		if f.Severity != c.severity || f.Change.Value != c.value || strings.Join(losers, " ") != c.losers {
			t.Errorf("%s with %v: %+v", c.id, c.instances, f)
		}
	}
}

// Where systemd can give a service a mode of its own (MemoryTHP), instances have their wish by their unit, and the
// host's value is for the others alone.
func TestApart(t *testing.T) {
	r, _ := library(t).Find("MEM-12")
	for _, c := range []struct {
		thp, kernel string
		instances   []string
		modes       map[string]string // of instances with a service, by engine: MemoryTHP
		want        string
	}{
		{"always", "6.18.2", []string{"postgresql@17"}, map[string]string{"postgresql": "inherit"},
			"postgresql.service/MemoryTHP=madvise"},
		{"always", "6.12.9", []string{"postgresql@17"}, map[string]string{"postgresql": "system"},
			"postgresql.service/MemoryTHP=disable"},
		{"always", "6.18.2", []string{"postgresql@17"}, map[string]string{"postgresql": "disable"}, ""},
		{"always", "6.18.2", []string{"postgresql@17"}, map[string]string{"postgresql": ""}, "host=madvise"},
		{"always", "6.18.2", []string{"postgresql@17"}, nil, "host=madvise"},
		{"madvise", "6.18.2", []string{"postgresql@17"}, map[string]string{"postgresql": "inherit"}, ""},
		{"madvise", "6.18.2", []string{"mongodb@8.0", "postgresql@17", "mysql@8.4"},
			map[string]string{"postgresql": "inherit", "mysql": "madvise", "mongodb": "inherit"},
			"host=always postgresql.service/MemoryTHP=madvise"},
		{"madvise", "6.18.2", []string{"mongodb@8.0", "postgresql@17", "mysql@8.4"},
			map[string]string{"postgresql": "inherit"}, "host= but mongodb"},
		{"madvise", "6.18.2", []string{"mongodb@7.0", "postgresql@17"},
			map[string]string{"postgresql": "inherit", "mongodb": "inherit"}, "mongodb.service/MemoryTHP=disable"},
	} {
		s := instances(&fact.Set{Host: fact.Values{"host.thp": fact.Known(c.thp, "x"),
			"host.kernel": fact.Known(c.kernel, "x")}}, c.instances...)
		for _, o := range s.Instances {
			if mode, has := c.modes[o.Name]; has {
				o.Values["instance.unit_thp"] = fact.Known(mode, "x")
				o.Values["instance.unit"] = fact.Known(o.Name+".service", "x")
			}
		}
		var got []string
		for _, f := range Run(&rule.Set{Rules: []*rule.Rule{r}}, s, Options{}).Findings {
			text := "host=" + f.Change.Value
			if f.Change.Class == rule.ClassUnit {
				text = f.Change.Unit + "/" + f.Change.Key + "=" + f.Change.Value
			}
			for _, l := range f.Losers {
				text += " but " + l.Instance
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s, %v, %v: %q, want %q", c.thp, c.instances, c.modes, got, c.want)
		}
	}
}

func TestUndecided(t *testing.T) {
	r, _ := library(t).Find("MEM-12")
	s := instances(&fact.Set{Host: fact.Values{"host.thp": fact.Known("always", "x")}}, "mongodb@")
	s.Instances[0].Values["instance.version"] = fact.Unknown("not told")
	rep := Run(&rule.Set{Rules: []*rule.Rule{r}}, s, Options{})
	if len(rep.Findings) > 0 || len(rep.Undecided) != 1 || rep.Undecided[0].Missing[0].Reason != "not told" {
		t.Errorf("%+v", rep)
	}
}

func TestOptions(t *testing.T) {
	facts := instances(&fact.Set{Host: fact.Values{"host.panic_on_oom": fact.Known(int64(1), "x")}},
		"mysql@8.4", "redis@7.0")
	for _, o := range facts.Instances {
		o.Values["instance.oom_score_adj"] = fact.Known(int64(0), "x")
	}
	all := library(t)
	ids := func(rep *Report) (list []string) {
		for _, f := range rep.Findings {
			list = append(list, f.Rule+strings.Join(f.On, "+"))
		}
		slices.Sort(list)
		return list
	}
	silence := []rule.Silence{{Rule: "MEM-36", On: "redis", Reason: "a cache", Until: "2026-12-31"}}
	for _, c := range []struct {
		o       Options
		silence []rule.Silence
		want    string
	}{
		{Options{}, nil, "MEM-36mysql MEM-36redis MEM-37"},
		{Options{Severity: "high"}, nil, "MEM-36mysql MEM-36redis"},
		{Options{Instance: "mysql"}, nil, "MEM-36mysql MEM-37"},
		{Options{Today: "2026-12-31"}, silence, "MEM-36mysql MEM-37"},
		{Options{Today: "2027-01-01"}, silence, "MEM-36mysql MEM-36redis MEM-37"},
	} {
		rep := Run(&rule.Set{Rules: all.Rules, Silence: c.silence}, facts, c.o)
		if got := strings.Join(ids(rep), " "); got != c.want {
			t.Errorf("%+v: %s", c.o, got)
		}
	}
}

// large is a host of 20 instances and 60 disks.
func large() *fact.Set {
	s := &fact.Set{Host: fact.Values{"host.thp": fact.Known("always", "x")}}
	for i := range 20 {
		instances(s, []string{"mysql@8.4", "postgresql@17", "redis@7.0", "mongodb@8.0"}[i%4])
		s.Instances[i].Name += fmt.Sprint(i)
	}
	for i := range 60 {
		s.Disks = append(s.Disks, fact.Object{Name: fmt.Sprint("sd", i), Values: fact.Values{
			"disk.kind": fact.Known("scsi", "x"), "disk.scheduler": fact.Known("bfq", "x"),
			"disk.databases": fact.Known([]string{"mysql0"}, "x"), "disk.rotational": fact.Known(true, "x"),
		}})
	}
	return s
}

func BenchmarkLargeHost(b *testing.B) {
	s := large()
	b.ReportAllocs()
	for b.Loop() {
		set, err := rule.Library()
		if err != nil {
			b.Fatal(err)
		}
		Run(set, s, Options{})
	}
}

// What is wanted of a disk may depend on the disk, and a rule asked of instances names the disk to change.
func TestValueOfADisk(t *testing.T) {
	for _, c := range []struct {
		facts map[string]any
		want  Change
	}{
		{map[string]any{"disk.databases": []any{"a"}, "disk.kind": "nvme", "disk.scheduler": "bfq"},
			Change{Class: "queue", Key: "scheduler", Value: "none", Disk: "one"}},
		{map[string]any{"disk.databases": []any{"a"}, "disk.kind": "scsi", "disk.scheduler": "bfq"},
			Change{Class: "queue", Key: "scheduler", Value: "mq-deadline", Disk: "one"}},
		{map[string]any{"instance": "mongodb@7.0", "instance.data_read_ahead": 128, "instance.data_disk": "dm-0"},
			Change{Class: "queue", Key: "read_ahead_kb", Value: "16", Disk: "dm-0"}},
	} {
		found := false
		for _, f := range Run(library(t), set(t, c.facts), Options{}).Findings {
			c.want.Cost = f.Change.Cost
			found = found || f.Change == c.want
		}
		if !found {
			t.Errorf("%v: no finding with %+v", c.facts, c.want)
		}
	}
}
