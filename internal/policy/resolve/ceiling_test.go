package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// on resolves a policy on a fixture of storage.
func on(t *testing.T, fixture, text string) (*policy.Policy, policy.Problems) {
	t.Helper()
	disks, err := hosttest.Load(t, "storage/"+fixture).Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	facts := testHost()
	facts.Devices, facts.Mounts = disks.Devices, disks.Mounts()
	p, err := parse.Policy([]policy.Source{{Path: "p.yaml", Text: "version: 1\n" + text}})
	if err != nil {
		t.Fatal(err)
	}
	return Policy(p, facts, Resolver{Storage: func() (*blockdev.Storage, error) { return disks, nil }})
}

func TestCeilings(t *testing.T) {
	const vg = "host: {io: [{on: 'vg:vgdata', bandwidth: 400MB/s, iops: 1000}]}\n"
	tests := []struct {
		name, fixture, text string
		want                []string // group device key value; none: a problem
		says                string
	}{
		{"of a volume group, on the path", "lvm-striped", vg +
			"groups: {a: {io: [{on: /pgdata, read: {bandwidth: 25%, iops: 5%}}]}}",
			[]string{"a 253:0 io.read.bandwidth 100MB/s (25% of 400MB/s)", "a 253:0 io.read.iops 50 (5% of 1000)"}, ""},
		{"shared by the disks", "lvm-striped", vg +
			"groups: {a: {io: [{on: /pgdata, layer: leaf, write: {bandwidth: 50%}}]}}",
			[]string{"a 8:16 io.write.bandwidth 50MB/s (1/4 of 200MB/s (50% of 400MB/s), on sdb)",
				"a 8:32 io.write.bandwidth 50MB/s (1/4 of 200MB/s (50% of 400MB/s), on sdc)",
				"a 8:48 io.write.bandwidth 50MB/s (1/4 of 200MB/s (50% of 400MB/s), on sdd)",
				"a 8:64 io.write.bandwidth 50MB/s (1/4 of 200MB/s (50% of 400MB/s), on sde)"},
			"writing has no iops, and many small requests"},
		{"of a partition's disk", "partitions",
			"host: {io: [{on: /dev/sdb, bandwidth: 100MB/s}]}\ngroups: {a: {io: [{on: /srv, read: {bandwidth: 10%}}]}}",
			[]string{"a 8:16 io.read.bandwidth 10MB/s (10% of 100MB/s)"}, ""},
		{"as much as there is", "lvm-striped", vg +
			"groups: {a: {io: [{on: /pgdata, read: {bandwidth: 400MB/s, iops: 1000}}]}}",
			[]string{"a 253:0 io.read.bandwidth 400MB/s", "a 253:0 io.read.iops 1000"}, ""},
		{"nothing known", "lvm-striped", "groups: {a: {io: [{on: /pgdata, read: {bandwidth: 25%}}]}}", nil,
			"io.read.bandwidth: 25% of what /pgdata can do is not known"},
		{"a part of what is known", "lvm-striped", vg + "groups: {a: {io: [{on: /dev/sdb, read: {bandwidth: 25%}}]}}",
			nil, "host.io has vg:vgdata, of which it is only a part"},
		{"the other one is known", "lvm-striped",
			"host: {io: [{on: /pgdata, iops: 1000}]}\ngroups: {a: {io: [{on: /pgdata, read: {bandwidth: 25%}}]}}", nil,
			"host.io does not name it for /pgdata"},
		{"less than one", "lvm-striped", vg + "groups: {a: {io: [{on: /pgdata, read: {iops: 0.01%}}]}}", nil,
			"0.01% of 1000 is less than one"},
		{"all devices", "partitions",
			"host: {io: [{on: /dev/sdb, iops: 1000}]}\ngroups: {a: {io: [{read: {iops: 10%}}]}}", nil,
			"10% of what sda can do is not known"},
		{"above it", "lvm-striped", vg + "groups: {a: {io: [{on: /pgdata, read: {bandwidth: 500MB/s}}]}}", nil,
			"io.read.bandwidth 500MB/s of a never acts: vg:vgdata does no more than 400MB/s"},
		{"above it on the disks", "lvm-striped", vg +
			"groups: {a: {io: [{on: /pgdata, layer: leaf, read: {iops: 1004}}]}}", nil,
			"io.read.iops 1004 of a never acts"},
		{"more than it together", "lvm-striped", vg +
			"groups: {a: {io: [{on: /pgdata, read: {iops: 60%}}]}, b: {io: [{on: /pgdata, read: {iops: 50%}}], " +
			"groups: {c: {io: [{on: /pgdata, read: {iops: 40%}}]}}}}",
			[]string{"a 253:0 io.read.iops 600 (60% of 1000)", "b 253:0 io.read.iops 500 (50% of 1000)",
				"b/c 253:0 io.read.iops 400 (40% of 1000)"},
			"io.read.iops: the limits on vg:vgdata come to 1100, and it does no more than 1000: when all want theirs " +
				"nobody gets it: a (600, p.yaml:3), b (500, p.yaml:3)"},
		{"on no disk", "network", "host: {io: [{on: /nfs, bandwidth: 1GB/s}]}", nil,
			"host.io on /nfs: no disk of this host holds it"},
		{"not there", "network", "host: {io: [{on: /dev/sdq, bandwidth: 1GB/s}]}", nil,
			"there is no block device /dev/sdq on this host"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, problems := on(t, test.fixture, test.text)
			var got []string
			var add func(groups []*policy.Group)
			add = func(groups []*policy.Group) {
				for _, g := range groups {
					for _, s := range g.Settings {
						text := fmt.Sprintf("%s %s %s %s", g.Path, s.Dev, s.Key, s.Value)
						if s.Raw != "" {
							text += " (" + s.Raw + ")"
						}
						got = append(got, text)
					}
					add(g.Groups)
				}
			}
			add(p.Groups)
			if test.want != nil && !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if said := fmt.Sprint(p.Notes, problems); !strings.Contains(said, test.says) ||
				(test.want == nil) != (len(problems) > 0) {
				t.Errorf("says %s, want %q", said, test.says)
			}
		})
	}
}

// A budget needs both, or the extremes get through.
func TestOneSidedBudgets(t *testing.T) {
	for io, want := range map[string][]string{
		"{on: /srv, read: {bandwidth: 1MB/s, iops: 5}}": nil,
		"{on: /srv, read: {bandwidth: 1MB/s}}":          {"reading has no iops"},
		"{on: /srv, write: {iops: 5}}":                  {"writing has no bandwidth"},
		"{on: /srv, read: {iops: 5}, write: {bandwidth: 1MB/s}}": {"reading has no bandwidth",
			"writing has no iops"},
		"{on: /srv, read: {bandwidth: 1MB/s}}, {read: {iops: 10}}": {"io for all devices: reading has " +
			"no bandwidth"},
		"{on: /srv, read: {iops: max}, write: {iops: max}}":                      nil,
		"{on: /srv, read: {bandwidth: 1MB/s, iops: 5}, write: {bandwidth: max}}": nil,
	} {
		p, problems := on(t, "partitions", "groups: {a: {io: ["+io+"]}}")
		said := fmt.Sprint(p.Notes)
		if len(problems) > 0 {
			t.Errorf("%s: %v", io, problems)
		}
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("%s: %s does not say %q", io, said, w)
			}
		}
		if want == nil && strings.Contains(said, "has no") {
			t.Errorf("%s: %s", io, said)
		}
	}
}
