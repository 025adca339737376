package classify

import (
	"fmt"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// busyHost is 2,000 processes, 50 of them database servers, and a policy that makes 200 groups of every
// kind of rule, with a quarter of them patterns over the command line.
func busyHost() (*policy.Policy, Input) {
	var procs []procfs.Process
	var instances []engine.Instance
	for n := range 2000 {
		p := proc(1000+n, fmt.Sprintf("/usr/bin/tool%d", n%40), fmt.Sprintf("tool%d", n%40), "--config",
			fmt.Sprintf("/etc/tool/%d.yaml", n), "--verbose", "--interval=30")
		p.UID, p.PPID = 1000+n%30, 1000+n/2
		p.Cgroups = map[string]string{"cpu": "/", "name=systemd": fmt.Sprintf("/system.slice/tool%d.service", n%40)}
		procs = append(procs, p)
	}
	for n := range 50 {
		instances = append(instances, engine.Instance{
			Engine: engine.MySQL, Port: 3306 + n, Main: procs[n*40].ID,
			Members: []engine.Member{{ID: procs[n*40].ID, Part: "main"}},
		})
	}
	groups := []*policy.Group{{Name: "mysql{port}", Each: &policy.Match{Engine: "mysql"}, Groups: []*policy.Group{
		group("backup", 10, policy.Match{Cmdline: `(mysqldump|xtrabackup).*{port}`}),
	}}}
	for n := range 100 {
		m := []policy.Match{
			{Exe: fmt.Sprintf("tool%d", n)}, {User: fmt.Sprint(1000 + n)},
			{Unit: fmt.Sprintf("tool%d.service", n), Ancestor: "cron"},
			{Cmdline: fmt.Sprintf(`/etc/tool/%d\.yaml`, n)},
		}[n%4]
		groups = append(groups, group(fmt.Sprint("g", n), 100+n, m))
	}
	in := input(procs...)
	in.Instances = instances
	return &policy.Policy{Groups: groups}, in
}

func BenchmarkClassify(b *testing.B) {
	p, in := busyHost()
	groups, problems := Expand(p, in.Instances)
	if len(groups) != 200 || len(problems) != 0 {
		b.Fatalf("%d groups, problems %v", len(groups), problems)
	}
	b.ReportAllocs()
	for b.Loop() {
		Classify(groups, in)
	}
}

func BenchmarkExpand(b *testing.B) {
	p, in := busyHost()
	b.ReportAllocs()
	for b.Loop() {
		Expand(p, in.Instances)
	}
}
