package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

func TestCollisions(t *testing.T) {
	tests := []struct {
		name, fixture, groups string
		says                  string // of a note, or with bad of a problem
		bad                   bool
	}{
		{"two entries of one group on one disk", "partitions",
			"{a: {io: [{on: /srv, read: {iops: 5}}, {on: /var/lib/mysql, read: {iops: 6}}]}}",
			"io.read.iops: /srv and /var/lib/mysql are both on sdb (8:16)", true},
		{"two groups on partitions of one disk", "partitions",
			"{a: {io: [{on: /srv, read: {iops: 5}}]}, b: {io: [{on: /var/lib/mysql, read: {iops: 6}}]}}",
			"the disk sdb (8:16) has limits of a for /srv (p.yaml:2), b for /var/lib/mysql (p.yaml:2)", false},
		{"two groups on the same", "partitions",
			"{a: {io: [{on: /srv, read: {iops: 5}}]}, b: {io: [{on: /srv, read: {iops: 6}}]}}", "", false},
		{"a child above its parent", "partitions",
			"{a: {io: [{on: /srv, read: {iops: 5}}], groups: {x: {io: [{on: /srv, read: {iops: 6}}]}}}}",
			"io.read.iops 6 of a/x on sdb (8:16) never acts: a, above it, has 5 there", true},
		{"above a grandparent, by another name", "partitions",
			"{a: {io: [{on: /srv, write: {bandwidth: 5MB/s}}], groups: {x: {groups: {y: {io: [{on: /dev/sdb, write: " +
				"{bandwidth: 6MB/s}}]}}}}}}",
			"io.write.bandwidth 6MB/s of a/x/y on sdb (8:16) never acts: a, above it, has 5MB/s there", true},
		{"as much as its parent", "partitions",
			"{a: {io: [{on: /srv, read: {iops: 5}}], groups: {x: {io: [{on: /srv, read: {iops: 5}}]}}}}", "", false},
		{"for all devices", "partitions",
			"{a: {io: [{on: /srv, read: {iops: 5}}], groups: {x: {io: [{read: {iops: 6}}]}}}}",
			"never acts: a, above it, has 5 there (p.yaml:2)", false},
		{"shared by the same disks", "lvm-striped",
			"{a: {io: [{on: /pgdata, layer: leaf, read: {iops: 50}}], groups: {x: {io: [{on: /pgdata, layer: leaf, " +
				"read: {iops: 51}}]}}}}",
			"io.read.iops 51 of a/x on /pgdata never acts: a, above it, has 50 there", true},
		{"less on one of the disks than its parent has on all, more than its part", "lvm-striped",
			"{a: {io: [{on: /pgdata, layer: leaf, read: {iops: 40}}], groups: {x: {io: [{on: /dev/sdb, read: " +
				"{iops: 11}}]}}}}",
			"io.read.iops 11 of a/x on sdb (8:16) never acts: a, above it, has 10 there", true},
		{"lifted above", "partitions",
			"{a: {io: [{on: /srv, read: {iops: max}}], groups: {x: {io: [{on: /srv, read: {iops: 5}}]}}}}", "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, problems := on(t, test.fixture, "groups: "+test.groups)
			var notes []string
			for _, n := range p.Notes {
				if !strings.Contains(n.Text, "the limit is on") && !strings.Contains(n.Text, "has no ") {
					notes = append(notes, n.Text)
				}
			}
			switch said := fmt.Sprint(notes); {
			case test.bad:
				if len(problems) != 1 || !strings.Contains(problems[0].Msg, test.says) || len(problems[0].Also) == 0 &&
					strings.Contains(test.says, "above it") {
					t.Errorf("got %v", problems)
				}
			case len(problems) > 0:
				t.Errorf("got %v", problems)
			case test.says == "" && len(notes) > 0, !strings.Contains(said, test.says):
				t.Errorf("notes %s, want %q", said, test.says)
			}
		})
	}
}

// A limit for all devices that one above makes pointless is void on the devices where it is: said once where that is on
// all of them. One of a class is, too.
func TestVoidBelowALimitAbove(t *testing.T) {
	for _, test := range []struct {
		groups string
		want   []string // device and text
	}{
		{
			"{a: {io: [{on: /srv, read: {iops: 5}}], groups: {x: {io: [{read: {iops: 6}}]}}}}",
			[]string{"8:16 io.read.iops 6 of a/x on sdb (8:16) never acts: a, above it, has 5 there (p.yaml:2)"},
		},
		{
			"{a: {io: [{read: {iops: 5}}], groups: {x: {io: [{read: {iops: 6}}]}}}}",
			[]string{" io.read.iops 6 of a/x never acts on any device: a, above it, has 5 on each (p.yaml:2)"},
		},
		{
			"{a: {io: [{read: {iops: 5}}], groups: {x: {io: [{read: {iops: 6}}, {on: /srv, read: {iops: 4}}]}}}}",
			[]string{"8:0 io.read.iops 6 of a/x on sda (8:0) never acts: a, above it, has 5 there (p.yaml:2)"},
		},
		{"{a: {io: [{read: {iops: 5}}], groups: {x: {io: [{read: {iops: 4}}]}}}}", nil},
	} {
		p, problems := on(t, "partitions", "groups: "+test.groups)
		if len(problems) > 0 {
			t.Errorf("%s: %v", test.groups, problems)
		}
		var got []string
		for _, n := range p.Notes {
			if n.Void && n.Group == "a/x" && n.Key == policy.KeyIOReadIOPS {
				got = append(got, n.Dev+" "+n.Text)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", test.groups, got, test.want)
		}
	}
}

// An override on a partition, or another name of a disk, does not silently take another limit's place.
func TestOverlaps(t *testing.T) {
	have := policy.Settings{{Key: policy.KeyIOReadIOPS, On: "/srv", Dev: "8:16", Value: policy.IOPS(5),
		Pos: policy.Pos{File: "p.yaml", Line: 3, Column: 1}},
		{Key: policy.KeyIOWriteIOPS, Dev: "8:16", Value: policy.IOPS(5)}}
	for _, test := range []struct {
		s    policy.Setting
		want bool
	}{
		{policy.Setting{Key: policy.KeyIOReadIOPS, On: "/srv", Dev: "8:16", Value: policy.IOPS(9)}, false},
		{policy.Setting{Key: policy.KeyIOReadIOPS, On: "/var/lib/mysql", Dev: "8:16", Value: policy.IOPS(9)}, true},
		// on all devices
		{policy.Setting{Key: policy.KeyIOReadIOPS, Dev: "8:16", Value: policy.IOPS(9)}, false},
		// over the default for all devices
		{policy.Setting{Key: policy.KeyIOWriteIOPS, On: "/srv", Dev: "8:16", Value: policy.IOPS(9)}, false},
		{policy.Setting{Key: policy.KeyIOReadIOPS, On: "/x", Dev: "8:0", Value: policy.IOPS(9)}, false},
		{policy.Setting{Key: policy.KeyCPULimit, Value: policy.Cores(1)}, false},
	} {
		p := Overlaps("a", have, test.s)
		if (p != nil) != test.want || p != nil && (len(p.Also) != 1 || !strings.Contains(p.Hint, "--on /srv")) {
			t.Errorf("%s: %+v", test.s, p)
		}
	}
}

// What no limit can hold comes with what helps.
func TestInstead(t *testing.T) {
	for kind, want := range map[blockdev.FilesystemKind]string{
		blockdev.InMemory: "memory.max", blockdev.OnNetwork: "server", blockdev.OnPool: "zvol",
		blockdev.OnOthers:  "upper directory",
		blockdev.OfProcess: "process that serves it",
		blockdev.OfKernel:  "name the disk", blockdev.OnUnknown: "name the disk",
	} {
		if got := instead(&blockdev.Layer{Kind: blockdev.Filesystem, Filesystem: kind}); !strings.Contains(got, want) {
			t.Errorf("%s: %q", kind, got)
		}
	}
}

// On v2 buffered writes are held on file systems that say whose they are.
func TestBufferedWrites(t *testing.T) {
	facts := testHost()
	facts.Hierarchies = []host.Hierarchy{{ID: "unified", Version: 2, Controllers: []string{"blkio", "memory"}}}
	for _, test := range []struct {
		kind string
		key  policy.Key
		want bool
	}{{"xfs", policy.KeyIOWriteIOPS, false}, {"vfat", policy.KeyIOWriteIOPS, true},
		{"vfat", policy.KeyIOReadIOPS, false}, {"ocfs2", policy.KeyIOWriteBandwidth, true}} {
		r := resolution{facts: facts, Report: yamlform.NewReport(nil)}
		diskLimits{&r}.noteBuffered(policy.Setting{Key: test.key, On: "/x", Value: policy.IOPS(5)},
			&blockdev.Layer{Kind: blockdev.Filesystem, Type: test.kind}, "g")
		if (len(r.notes) == 1) != test.want {
			t.Errorf("%s %s: %v", test.kind, test.key, r.notes)
		}
	}
}
