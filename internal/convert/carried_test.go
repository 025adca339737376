package convert

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// notCarried are the fields that an export need not carry along: what is the same for every policy, what others give
// (a class its settings, a path its names), and what is found on a host.
var notCarried = []string{
	"Policy.Version", "Policy.Sources", "Policy.Notes", "Group.Name", "Group.Class", "Tuning.From", "Tuning.Asked",
	"Tuning.Lasting", "Tuning.Disk", "Owner.UID", "Owner.GID", "Ceiling.Devices", "NetworkLink.Dev",
}

// Every field of a policy is carried along by an export, or stands on the list of those that need not be: what somebody
// adds to a policy and forgets here, an import of an export would drop.
func TestEveryFieldIsCarriedAlong(t *testing.T) {
	of := func(set func(*policy.Policy, reflect.Value)) func(reflect.Value) string {
		return func(v reflect.Value) string {
			var p policy.Policy
			set(&p, v)
			return Flow(&p)
		}
	}
	group := func(set func(*policy.Group, reflect.Value)) func(reflect.Value) string {
		return of(func(p *policy.Policy, v reflect.Value) {
			g := &policy.Group{Path: "g"}
			set(g, v)
			p.Groups = []*policy.Group{g}
		})
	}
	tested := map[string]bool{}
	for _, one := range []struct {
		of   reflect.Type
		flow func(reflect.Value) string
	}{
		{reflect.TypeFor[policy.Policy](), of(func(p *policy.Policy, v reflect.Value) {
			*p = v.Interface().(policy.Policy)
		})},
		{reflect.TypeFor[policy.HostPart](), of(func(p *policy.Policy, v reflect.Value) {
			p.Host = v.Interface().(policy.HostPart)
		})},
		{reflect.TypeFor[policy.Reserve](), of(func(p *policy.Policy, v reflect.Value) {
			p.Host.Reserve = v.Interface().(policy.Reserve)
		})},
		{reflect.TypeFor[policy.History](), of(func(p *policy.Policy, v reflect.Value) {
			p.Host.History = v.Interface().(policy.History)
		})},
		{reflect.TypeFor[policy.Tuning](), of(func(p *policy.Policy, v reflect.Value) {
			p.Host.Tune = []policy.Tuning{v.Interface().(policy.Tuning)}
		})},
		{reflect.TypeFor[policy.Ceiling](), of(func(p *policy.Policy, v reflect.Value) {
			p.Host.IO = []policy.Ceiling{v.Interface().(policy.Ceiling)}
		})},
		{reflect.TypeFor[policy.NetworkLink](), of(func(p *policy.Policy, v reflect.Value) {
			p.Host.Network = []policy.NetworkLink{v.Interface().(policy.NetworkLink)}
		})},
		{reflect.TypeFor[policy.AgentPart](), of(func(p *policy.Policy, v reflect.Value) {
			p.Agent = v.Interface().(policy.AgentPart)
		})},
		{reflect.TypeFor[policy.Record](), of(func(p *policy.Policy, v reflect.Value) {
			p.Agent.Record = v.Interface().(policy.Record)
		})},
		{reflect.TypeFor[policy.Guard](), of(func(p *policy.Policy, v reflect.Value) {
			g := v.Interface().(policy.Guard)
			p.Guard = &g
		})},
		{reflect.TypeFor[policy.Guarded](), of(func(p *policy.Policy, v reflect.Value) {
			p.Guard = &policy.Guard{Groups: []policy.Guarded{v.Interface().(policy.Guarded)}}
		})},
		{reflect.TypeFor[policy.SLOPart](), of(func(p *policy.Policy, v reflect.Value) {
			p.SLO = v.Interface().(policy.SLOPart)
		})},
		{reflect.TypeFor[policy.Group](), group(func(g *policy.Group, v reflect.Value) {
			*g = v.Interface().(policy.Group)
		})},
		{reflect.TypeFor[policy.SLO](), group(func(g *policy.Group, v reflect.Value) {
			s := v.Interface().(policy.SLO)
			g.SLO = &s
		})},
		{reflect.TypeFor[policy.Owner](), group(func(g *policy.Group, v reflect.Value) {
			g.Owner = []policy.Owner{v.Interface().(policy.Owner)}
		})},
		{reflect.TypeFor[policy.Match](), group(func(g *policy.Group, v reflect.Value) {
			g.Match = []policy.Match{v.Interface().(policy.Match)}
		})},
	} {
		none := one.flow(reflect.New(one.of).Elem())
		for i := range one.of.NumField() {
			f := one.of.Field(i)
			name := one.of.Name() + "." + f.Name
			if !f.IsExported() || f.Type == reflect.TypeFor[policy.Pos]() {
				continue
			}
			tested[name] = true
			v := reflect.New(one.of).Elem()
			fill(v.Field(i), 0)
			switch carried, exempt := one.flow(v) != none, slices.Contains(notCarried, name); {
			case !carried && !exempt:
				t.Errorf("%s is not carried along by an export", name)
			case carried && exempt:
				t.Errorf("%s is carried along: take it off the list", name)
			}
		}
	}
	for _, name := range notCarried {
		if !tested[name] {
			t.Errorf("there is no field %s", name)
		}
	}
}

// fill makes a value say something.
func fill(v reflect.Value, depth int) {
	special := map[reflect.Type]any{
		reflect.TypeFor[policy.Settings](): policy.Settings{{Key: policy.KeyCPUWeight, Value: policy.Weight(7)}},
		reflect.TypeFor[[]*policy.Group](): []*policy.Group{{Name: "x", Path: "x"}},
		reflect.TypeFor[policy.Key]():      policy.KeyCPUWeight,
		reflect.TypeFor[policy.Bound]():    policy.Bound{Lowest: policy.Weight(7)},
		reflect.TypeFor[policy.Value]():    policy.Bytes(7),
		reflect.TypeFor[policy.MemoryModel](): policy.MemoryModel{
			Values: []policy.ModelValue{{Name: policy.ModelInputs[0].Name, Value: 7}}},
	}
	if known, is := special[v.Type()]; is {
		v.Set(reflect.ValueOf(known))
		return
	}
	const deepest = 3 // a match has matches
	if depth > deepest || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	}
}

// The blocks beside the groups, and what a group is promised, are said again as they were read.
func TestBlocksAreSaidAgain(t *testing.T) {
	read := func(text string) *policy.Policy {
		t.Helper()
		p, err := parse.Policy([]policy.Source{{Path: "p", Text: "version: 1\n" + text}})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for i := range p.Host.Tune {
			p.Host.Tune[i].Pos = policy.Pos{}
		}
		p.Guard.Pos = policy.Pos{}
		for i := range p.Guard.Groups {
			p.Guard.Groups[i].Pos, p.Guard.Groups[i].PressurePos = policy.Pos{}, policy.Pos{}
		}
		for _, g := range p.Groups {
			if g.SLO != nil {
				g.SLO.Pos = policy.Pos{}
			}
		}
		return p
	}
	const batch = "batch: {role: batch}, "
	for _, text := range []string{
		"host: {tune: {vm.swappiness: 1, thp: madvise, net/ipv4/conf/eth0.1/rp_filter: 2, " +
			"kernel: {psi: 1, hugepages: 139}, disk /dev/mapper/a: {scheduler: none, read_ahead_kb: 128}, " +
			"disk vda: {scheduler: none}, mount /: {atime: noatime}, mount /data: {atime: relatime}, " +
			"unit a.service: {LimitNOFILE: 65535}, /sys/kernel/mm/ksm/run: 0}}\n" +
			"slo: {mode: 'off', squeeze: []}\nguard: {groups: {g: {oom_kills: 0}}}\n" +
			"snapshots: {'*': {older: 14d}, mysql3306: {keep: 7, older: 36h}}\n" +
			"groups: {g: {slo: {work: 0.1/s, dsn: 'redis://localhost/'}}}\n",
		"slo: {mode: act, squeeze: [batch], within: {batch: {cpu.limit: 0.2..2, io.read.bandwidth: 10MB/s.., " +
			"cpu.weight: ..50, io.write.iops: ..max}}}\n" +
			"guard: {for: 90s, window: 2500ms, before: 1h, groups: {g: {oom_kills: 3, memory_pressure: 0.1%, " +
			"throttled: 12.345678 %, throughput_falls: 100%, dsn: 'mysql://b@localhost/?socket=/s'}, " +
			"batch: {throttled: 0%}}}\n" +
			"groups: {" + batch + "g: {slo: {heartbeat: 1.000001ms, dsn: 'redis://localhost/'}}}\n",
		"slo: {}\nguard: {groups: {g: {oom_kills: 0}}}\ngroups: {g: {slo: {waits: 0.7%}}}\n",
	} {
		before := read(text)
		again := "groups: {" + batch + "g: " + GroupFlow(before.Groups[len(before.Groups)-1]) + "}\n"
		for _, block := range TopBlocks(before) {
			again += block.Key + ": " + block.Text + "\n"
		}
		after := read(again)
		type said struct{ host, guard, slo, group, snapshots any }
		of := func(p *policy.Policy) said {
			return said{p.Host.Tune, p.Guard, p.SLO, p.Groups[len(p.Groups)-1].SLO, parse.Snapshots(p.Sources)}
		}
		if !reflect.DeepEqual(of(before), of(after)) {
			t.Errorf("%s\nis said again as\n%s", text, again)
		}
	}
}

// A password is in no export, as everybody may read its files.
func TestPasswordsAreNotCarriedAlong(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://b:s3cret@localhost/?socket=/s":      "mysql://b@localhost/?socket=/s",
		"mysql://b:s3@cret@localhost/?socket=/s:1@2": "mysql://b@localhost/?socket=/s:1@2",
		"postgres://b:s3cret@db:5432/x":              "postgres://b@db:5432/x",
		"postgres://b:s3cret@localhost:{port}/x":     "postgres://b@localhost:{port}/x",
		"redis://:s3cret@localhost":                  "redis://localhost",
		"unix://b:s3cret@/run/redis.sock?db=1":       "unix://b@/run/redis.sock?db=1",
		"unix:///run/redis.sock":                     "unix:///run/redis.sock",
		"redis://localhost:6379/0":                   "redis://localhost:6379/0",
		"mysql://b@localhost:3306/":                  "mysql://b@localhost:3306/",
	} {
		if got := withoutPassword(dsn); got != want {
			t.Errorf("%s is %s, not %s", dsn, got, want)
		}
	}
	const dsn = "mysql://b:s3cret@localhost/?socket=/s"
	p := &policy.Policy{Guard: &policy.Guard{Groups: []policy.Guarded{{Group: "g", DSN: dsn}}},
		Groups: []*policy.Group{{Path: "g", SLO: &policy.SLO{Signal: "work", Value: 1, DSN: dsn}}}}
	var r Report
	r.Beside(p, TopBlocks(p))
	if text := Flow(p); strings.Contains(text, "s3cret") || !strings.Contains(text, "mysql://b@localhost") {
		t.Error(text)
	}
	said := 0
	for _, l := range r.Left {
		if strings.HasSuffix(l.What, "the password in dsn") {
			said++
		}
	}
	if said != 2 {
		t.Errorf("said %d times: %v", said, r.Left)
	}
}

// A percentage, a time and a rate of work come back as the very number that was read.
func TestNumbersOfPromisesComeBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		text := strconv.FormatFloat(100*r.Float64(), 'f', r.IntN(22), 64)
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		written := percentText(n / 100)
		if back, err := strconv.ParseFloat(written[:len(written)-1], 64); err != nil || back/100 != n/100 {
			t.Fatalf("%s%% is written as %s", text, written)
		}
		span := time.Duration(r.Int64N(int64(time.Minute)))
		flow := sloFlow(&policy.SLO{Signal: "p95", Value: span.Seconds()})
		if want := "{p95: " + quote(span.String()) + "}"; flow != want {
			t.Fatalf("%s, not %s", flow, want)
		}
	}
	for share, want := range map[float64]string{0: "0%", 1: "100%", 0.3: "30%", 0.07: "7%", 0.125: "12.5%",
		0.001: "0.1%"} {
		if got := percentText(share); got != want {
			t.Errorf("%v is %s, not %s", share, got, want)
		}
	}
}
