package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// weighedHost is a fixture's storage on a host of a version of cgroups that can weigh.
func weighedHost(t *testing.T, fixture string, version int, change func(*host.Facts)) (*host.Facts, Resolver) {
	t.Helper()
	disks, err := hosttest.Load(t, "storage/"+fixture).Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	f := testHost()
	f.Hierarchies = []host.Hierarchy{{ID: "x", Version: version, Controllers: []string{"blkio"}}}
	f.Devices, f.Mounts, f.BFQ, f.IOCost = disks.Devices, disks.Mounts(), true, version == 2
	for i := range f.Devices {
		if d := &f.Devices[i]; d.Kind == blockdev.Disk {
			d.Scheduler, d.Schedulers = "none", []string{"none", "bfq"}
		}
	}
	if change != nil {
		change(f)
	}
	disks.Devices = f.Devices
	return f, Resolver{Storage: func() (*blockdev.Storage, error) { return disks, nil }}
}

func TestWeights(t *testing.T) {
	const model = "model: {read: {bandwidth: 500MB/s, sequential: 50000, random: 20000}, write: {bandwidth: 400MB/s, " +
		"sequential: 40000, random: 15000}}"
	without := func(f *host.Facts) { f.BFQ = false }
	for _, test := range []struct {
		name, fixture string
		version       int
		host, io      string
		change        func(*host.Facts)
		want          []string // "group device=weight by" of each
		says          string
	}{
		{"striped volume", "lvm-striped", 2, "", "{on: 'vg:vgdata', weight: 500}", nil,
			[]string{"8:16=500 bfq", "8:32=500 bfq", "8:48=500 bfq", "8:64=500 bfq"},
			"BFQ becomes its scheduler in place of none"},
		{"at the top", "lvm-striped", 2, "", "{on: 'vg:vgdata', weight: 500, layer: top}", nil, nil,
			"neither iocost nor BFQ weighs at"},
		{"partition", "partitions", 2, "", "{on: /dev/sda, weight: 500}", nil, []string{"8:0=500 bfq"}, ""},
		{"model", "partitions", 2, "io: [{on: /dev/sda, " + model + "}]", "{on: /dev/sda, weight: 500}", nil,
			[]string{"8:0=500 iocost"}, "iocost weighs there, as host.io has a model"},
		{"model beside BFQ", "partitions", 2, "io: [{on: /dev/sda, " + model + "}]", "{on: /dev/sda, weight: 500}",
			func(f *host.Facts) {
				for i := range f.Devices {
					f.Devices[i].Scheduler = blockdev.BFQ
				}
			}, nil, "its scheduler is BFQ, which weighs too"},
		{"model on v1", "partitions", 1, "io: [{on: /dev/sda, " + model + "}]", "{on: /dev/sda, weight: 500}", nil,
			[]string{"8:0=500 bfq"}, ""},
		{"iocost that somebody has set up", "partitions", 2, "", "{on: /dev/sda, weight: 500}", func(f *host.Facts) {
			for i := range f.Devices {
				f.Devices[i].Cost.QoS = "enable=1 ctrl=auto"
			}
		}, []string{"8:0=500 iocost"}, "which somebody has set up"},
		{"no BFQ and no model", "partitions", 2, "", "{on: /dev/sda, weight: 500}", without, nil, "--measure"},
		{"no BFQ on v1", "partitions", 1, "", "{on: /dev/sda, weight: 500}", without, nil,
			"this kernel has neither BFQ nor CFQ"},
		{"CFQ", "partitions", 1, "", "{on: /dev/sda, weight: 500}", func(f *host.Facts) {
			f.BFQ = false
			for i := range f.Devices {
				f.Devices[i].Scheduler, f.Devices[i].Schedulers = "deadline", []string{"noop", "deadline", "cfq"}
			}
		}, []string{"8:0=500 cfq"}, "the scheduler CFQ weighs"},
		{"no queue", "partitions", 2, "", "{on: /dev/sda, weight: 500}", func(f *host.Facts) {
			for i := range f.Devices {
				f.Devices[i].Schedulers = nil
			}
		}, nil, "has no queue of requests"},
		{"no disk is named", "partitions", 2, "io: [{on: /dev/sda, " + model + "}]", "{weight: 500}", nil,
			[]string{}, ""},
		{"no disk is named, and one weighs", "lvm-striped", 1, "", "{weight: 500}", func(f *host.Facts) {
			sdb := slices.IndexFunc(f.Devices, func(d blockdev.Device) bool { return d.Number == "8:16" })
			f.Devices[sdb].Scheduler = blockdev.BFQ
		}, []string{"8:16=500 bfq"}, "changes no disk, and is not held on sda, sdc, sdd, sde"},
		{"no disk is named, and somebody uses iocost", "partitions", 2, "", "{weight: 500}", func(f *host.Facts) {
			f.Devices[0].Cost.QoS = "enable=1 ctrl=auto"
		}, []string{"8:0=500 iocost"}, ""},
		{"no disk is named, nothing can weigh", "partitions", 2, "", "{weight: 500}", without, []string{}, ""},
		{"network", "network", 2, "", "{on: /nfs, weight: 500}", nil, nil, "is on the network"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, r := weighedHost(t, test.fixture, test.version, test.change)
			text := "version: 1\n"
			if test.host != "" {
				text += "host: {" + test.host + "}\n"
			}
			text += "groups:\n  g:\n    match: [{user: nobody}]\n    io: [" + test.io + "]\n"
			p, err := parse.Policy([]policy.Source{{Path: "main", Text: text}})
			if err != nil {
				t.Fatal(err)
			}
			resolved, problems := Policy(p, f, r)
			var got []string
			for _, s := range resolved.Groups[0].Settings {
				if s.Dev != "" {
					got = append(got, fmt.Sprintf("%s=%s %s", s.Dev, s.Value, s.Via))
				}
			}
			said := fmt.Sprint(resolved.Notes, problems)
			if !slices.Equal(got, test.want) || (test.want == nil) != (len(problems) > 0) {
				t.Errorf("got %q, want %q; %s", got, test.want, said)
			}
			if !strings.Contains(said, test.says) {
				t.Errorf("says %s, want %q", said, test.says)
			}
		})
	}
}

// A role's weight holds on the disks on which some group asks for one, and makes no disk weigh by itself.
func TestRolesWeights(t *testing.T) {
	f, r := weighedHost(t, "partitions", 1, nil)
	groups := func(io string) map[string][]string {
		p, err := parse.Policy([]policy.Source{{Path: "main",
			Text: "version: 1\ngroups:\n  base:\n    role: database\n    match: [{user: a}]\n" + io +
				"  backup: {role: helper, match: [{user: b}]}\n  other: {match: [{user: c}]}\n"}})
		if err != nil {
			t.Fatal(err)
		}
		resolved, problems := Policy(p, f, r)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		got := map[string][]string{}
		for _, g := range resolved.Groups {
			for _, s := range g.Settings.All(policy.KeyIOWeight) {
				got[g.Path] = append(got[g.Path], fmt.Sprintf("%s=%s %s", s.Dev, s.Value, s.Via))
			}
		}
		return got
	}
	if got := fmt.Sprint(groups("")); got != "map[backup:[=10 ] base:[=1000 ]]" {
		t.Errorf("without a disk: %s", got)
	}
	if got := fmt.Sprint(groups("    io: [{on: /dev/sda, weight: " +
		"700}]\n")); got != "map[backup:[8:0=10 bfq] base:[8:0=700 bfq]]" {
		t.Errorf("on sda: %s", got)
	}
	if got := fmt.Sprint(groups("    io: [{weight: 700}]\n")); got != "map[backup:[=10 ] base:[=700 ]]" {
		t.Errorf("without `on`: %s", got)
	}
	if got := fmt.Sprint(groups("    io: [{weight: 700}]\n  c:\n" +
		"    match: [{user: d}]\n    io: [{on: /dev/sda, weight: 9}]\n")); got !=
		"map[backup:[8:0=10 bfq] base:[8:0=700 bfq] c:[8:0=9 bfq]]" {
		t.Errorf("another names sda: %s", got)
	}
}
