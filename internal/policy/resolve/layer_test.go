package resolve

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// asmHost names disks of disk groups.
var asmHost = &policy.HostPart{ASM: []policy.DiskGroup{
	{Name: "DATA", Members: blockdev.Members{Disks: []string{"/dev/mapper/asm_data01", "/dev/dm-1"}}},
	{Name: "ONE", Members: blockdev.Members{Disks: []string{"/dev/mapper/asm_data03"}}},
	{Name: "PART", Members: blockdev.Members{Disks: []string{"/dev/sdb1"}}},
}}

func TestLayers(t *testing.T) {
	const rate, few = policy.Rate(50_000_000), policy.IOPS(1)
	tests := []struct {
		fixture, on string
		layer       policy.Layer
		value       policy.Value
		want        []string // device=value; none: a problem
		says        string   // of the note or the problem
	}{
		// One filesystem on one device: the top, whatever lies below.
		{"lvm-striped", "/pgdata", "", rate, []string{"253:0=50MB/s"},
			"the limit is on vgdata/pgdata (dm-0, 253:0), the top device, which /pgdata has to itself"},
		{"lvm-striped", "/pgdata", policy.LayerAuto, rate, []string{"253:0=50MB/s"}, "top device"},
		{"lvm-striped", "/dev/dm-0", "", rate, []string{"253:0=50MB/s"}, ""},
		{"lvm-striped", "253:0", policy.LayerTop, rate, []string{"253:0=50MB/s"}, ""},
		{"crypt-on-lvm", "/var/lib/mysql", "", rate, []string{"253:1=50MB/s"}, "mysql_crypt"},
		{"raid0", "/data", "", rate, []string{"9:0=50MB/s"}, "md0"},
		{"raid-partitioned", "/", "", rate, []string{"9:0=50MB/s"},
			"on the whole disk md0, not on partition md0p1 alone"},
		{"partitions", "/srv", "", rate, []string{"8:16=50MB/s"}, "on the whole disk sdb"},
		{"partitions", "/srv", policy.LayerTop, rate, []string{"8:16=50MB/s"}, "on the whole disk sdb"},
		{"nvme-multipath", "/data", "", rate, []string{"259:2=50MB/s"}, ""},
		{"loop-on-lvm", "/srv/db", "", rate, []string{"7:0=50MB/s"}, ""},
		{"bcache", "/data", "", rate, []string{"252:0=50MB/s"}, "bcache0"},
		{"btrfs", "/home", "", rate, []string{"8:0=50MB/s"}, "on the whole disk sda"},
		// The disks share it where they are asked for, or where there is no one device at the top.
		{"lvm-striped", "/pgdata", policy.LayerLeaf, rate,
			[]string{"8:16=12.5MB/s", "8:32=12.5MB/s", "8:48=12.5MB/s", "8:64=12.5MB/s"},
			"the limit is on sdb, sdc, sdd and sde: the disks below it, as the policy asks"},
		{"btrfs", "/db", "", rate, []string{"8:16=25MB/s", "8:32=25MB/s"},
			"/db is on 2 devices, so its disks share the limit; a mirror writes everything more than once"},
		// two partitions of one disk
		{"bcachefs", "/mnt/test", "", rate, []string{"8:32=50MB/s"}, "the limit is on sdc"},
		{"lvm-thin", "/db/1", policy.LayerLeaf, rate, []string{"8:16=25MB/s", "8:32=25MB/s"}, "sdb and sdc"},
		{"lvm-cache", "/data", policy.LayerLeaf, rate, []string{"8:0=50MB/s"}, ""},
		{"crypt-on-lvm", "/var/lib/mysql", policy.LayerLeaf, rate, []string{"8:0=25MB/s", "8:16=25MB/s"},
			"each time counts"},
		{"multipath", "/u01", policy.LayerLeaf, rate, []string{"253:0=50MB/s"}, "mpatha"},       // not for each path
		{"multipath", "", "", rate, []string{"253:0=50MB/s", "253:1=50MB/s", "8:0=50MB/s"}, ""}, // each disk, no path
		{"loop-on-lvm", "/srv/db", policy.LayerLeaf, rate, []string{"8:16=50MB/s"}, "sdb"},
		{"lvm-striped", "/pgdata", policy.LayerLeaf, policy.Unlimited{},
			[]string{"8:16=max", "8:32=max", "8:48=max", "8:64=max"}, ""},
		// 8 of 10: never more
		{"lvm-striped", "/pgdata", policy.LayerLeaf, policy.IOPS(10), []string{"8:16=2", "8:32=2", "8:48=2", "8:64=2"},
			""},
		// A volume group: the one volume that it has, or the disks of several.
		{"lvm-striped", "vg:vgdata", "", rate, []string{"253:0=50MB/s"},
			"the limit is on vgdata/pgdata (dm-0, 253:0), the top device, which the volume group vgdata has to itself"},
		{"lvm-striped", "vg:vgdata", policy.LayerLeaf, rate,
			[]string{"8:16=12.5MB/s", "8:32=12.5MB/s", "8:48=12.5MB/s", "8:64=12.5MB/s"}, "sdb, sdc, sdd and sde"},
		{"lvm-linear", "vg:vg-data", "", rate, []string{"8:16=25MB/s", "8:32=25MB/s"},
			"the volume group vg-data is on 2 devices, so its disks share the limit"},
		{"lvm-linear", "vg:vg-data", policy.LayerTop, rate, nil,
			"the volume group vg-data is on vg-data/my-sql and vg-data/binlog: there is no one device at the top"},
		{"lvm-linear", "vg:none", "", rate, nil, "here there are rhel, vg-data"},
		// A disk group of ASM, by the names that the policy has.
		{"multipath-asm", "asm:DATA", "", rate, []string{"253:0=25MB/s", "253:1=25MB/s"},
			"the ASM disk group DATA is on 2 devices, so its disks share the limit"},
		{"multipath-asm", "asm:DATA", policy.LayerTop, rate, nil, "there is no one device at the top"},
		{"multipath-asm", "asm:ONE", "", rate, []string{"253:2=50MB/s"},
			"the top device, which the ASM disk group ONE has to itself"},
		{"partitions", "asm:PART", "", rate, []string{"8:16=50MB/s"},
			"the limit is on the whole disk sdb, not on partition sdb1 alone"},
		{"multipath-asm", "asm:FRA", "", rate, nil, "name its disks: `host: {asm: [{group: FRA, disks:"},
		// What cannot be.
		{"btrfs", "/db", policy.LayerTop, rate, nil,
			"/db (btrfs) is on sdb and sdc: there is no one device at the top"},
		{"btrfs", "/db", "", few, nil, "1 over 2 disks is less than one for each"},
		{"btrfs-degraded", "/lost", "", rate, nil, "its devices cannot be told"},
		{"zfs", "/tank/mysql", "", rate, nil, "zfs reads and writes from threads of its own"},
		{"zfs", "/tank/mysql", policy.LayerLeaf, rate, nil, "zfs reads and writes from threads of its own"},
		{"network", "/nfs", "", rate, nil, "nfs4 is on the network"},
		{"network", "/odd", "", rate, nil, "newfs (0:56) has no block device"},
		{"overlay", "/var/lib/docker/overlay2/aa/merged", "", rate, nil, "overlay lies on other file systems"},
		{"vanished", "/gone", "", rate, nil, "8:17 is not there: /sys shows no block device 8:17"},
		{"vanished", "/db", policy.LayerLeaf, rate, nil, "/dev/sdb is not there"},
		{"ring", "/one", policy.LayerLeaf, rate, nil, "lies on itself"},
	}
	for _, test := range tests {
		t.Run(test.fixture+" "+test.on+" "+string(test.layer), func(t *testing.T) {
			disks, err := hosttest.Load(t, "storage/"+test.fixture).Block.Storage()
			if err != nil {
				t.Fatal(err)
			}
			facts := testHost()
			facts.Devices, facts.Mounts = disks.Devices, disks.Mounts()
			r := resolution{facts: facts, Report: yamlform.NewReport(nil),
				Resolver: Resolver{Host: asmHost, Storage: func() (*blockdev.Storage, error) { return disks, nil }}}
			key := policy.KeyIOReadBandwidth
			if _, is := test.value.(policy.IOPS); is {
				key = policy.KeyIOReadIOPS
			}
			var got []string
			for _, s := range r.settings(policy.Settings{{Key: key, On: test.on, Layer: test.layer, Value: test.value}},
				"g") {
				if s.Lost != "" && s.Dev == "" { // for those that have it in force
					continue
				}
				got = append(got, s.Dev+"="+s.Value.String())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			said := fmt.Sprint(r.notes, r.Problems())
			if !strings.Contains(said, test.says) || (test.want == nil) != (len(r.Problems()) > 0) {
				t.Errorf("says %s, want %q", said, test.says)
			}
		})
	}
}

// The parts of a limit are never more than the whole, and never nothing.
func TestShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole, n := rapid.Int64Range(1, 1<<40).Draw(t, "whole"), rapid.Int64Range(1, 100).Draw(t, "disks")
		part, left := share(policy.Rate(whole), n)
		if !left {
			if whole >= n {
				t.Fatalf("nothing is left of %d over %d", whole, n)
			}
			return
		}
		if each := int64(part.(policy.Rate)); each < 1 || each*n > whole || (each+1)*n <= whole {
			t.Fatalf("%d over %d is %d each", whole, n, each)
		}
	})
}

func TestStorageThatFails(t *testing.T) {
	broken := Resolver{Storage: func() (*blockdev.Storage, error) { return nil, errors.New("read mounts: gone") }}
	_, problems := Setting(policy.Setting{Key: policy.KeyIOReadIOPS, On: "/data", Value: policy.IOPS(5)}, testHost(),
		broken)
	if len(problems) != 1 || !strings.Contains(problems[0].Msg, "io.on /data: read mounts: gone") {
		t.Errorf("got %v", problems)
	}
	// Nobody asks for it where no limit has a target.
	if _, problems = Setting(policy.Setting{Key: policy.KeyIOReadIOPS, Value: policy.IOPS(5)}, testHost(),
		broken); len(problems) != 0 {
		t.Errorf("without a target: %v", problems)
	}
}

func TestLayerInJSON(t *testing.T) {
	s := policy.Setting{Key: policy.KeyIOReadIOPS, On: "/db", Dev: "8:16", Layer: policy.LayerLeaf, Why: "at sdb: why",
		Value: policy.IOPS(5), Whole: policy.IOPS(10), Parts: 2, Split: policy.SplitEven, Raw: "1/2 of 10, on sdb"}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back policy.Setting
	if err := json.Unmarshal(text, &back); err != nil || back != s {
		t.Errorf("%s reads as %+v, %v", text, back, err)
	}
}
