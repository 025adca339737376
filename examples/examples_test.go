package examples

import (
	"io/fs"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/resolve"
)

// Every example is a sound policy, also on a host. Tests as root apply each of them.
func TestExamplesAreSound(t *testing.T) {
	files, err := fs.Glob(Policies, "*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	facts := &host.Facts{Systemd: true, CPUs: idset.New(0, 1, 2, 3), MemTotal: 16 << 30, SwapTotal: 1 << 30,
		PageSize: 4096,
		Nodes: []host.Node{{ID: 0, CPUs: idset.New(0, 1), MemTotal: 8 << 30},
			{ID: 1, CPUs: idset.New(2, 3), MemTotal: 8 << 30}},
		Mounts:  mountinfo.Mounts{{Dev: "8:16", Point: "/", Type: "ext4", Source: "/dev/sdb"}},
		Devices: []blockdev.Device{{Number: "8:16", Name: "sdb", Kind: blockdev.Disk}}}
	for _, name := range files {
		text, err := Policies.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := parse.Policy([]policy.Source{{Path: name,
			// Headers of disks are not read here.
			Text: strings.ReplaceAll(string(text), "asm:DATA", "/dev/sdb")}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, problems := resolve.Policy(p, facts, resolve.Resolver{}); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
	}
}
