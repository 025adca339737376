package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/resolve"
)

// large is a host on which everything fits that a file may ask for: these devices are there.
func large(devices []string) *host.Facts {
	f := &host.Facts{Kernel: host.Version{Major: 6, Minor: 1}, MemTotal: 4 << 40, SwapTotal: 1 << 30, PageSize: 4096,
		HugePageSizes: []int64{2 << 20, 1 << 30}, PIDMax: 1 << 22, ThreadsMax: 1 << 22, IOCost: true, BFQ: true}
	for cpu := range 256 {
		f.CPUs = append(f.CPUs, cpu)
	}
	for node := range 8 {
		f.Nodes = append(f.Nodes, host.Node{ID: node, MemTotal: 1 << 39,
			CPUs: f.CPUs[node*32 : node*32+32 : node*32+32]})
	}
	for _, c := range []string{"blkio", "cpu", "cpuacct", "cpuset", "freezer", "hugetlb", "memory", "pids"} {
		f.Hierarchies = append(f.Hierarchies, host.Hierarchy{ID: c, Version: 1, Controllers: []string{c},
			Mount: "/sys/fs/cgroup/" + c, Root: "/"})
	}
	devices = append([]string{"8:0"}, slices.DeleteFunc(devices, func(d string) bool { return d == "8:0" })...)
	slices.SortFunc(devices, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	f.Mounts = mountinfo.Mounts{{Dev: "8:0", Point: "/", Type: "ext4", Source: "/dev/sda"}}
	for i, number := range devices {
		f.Devices = append(f.Devices, blockdev.Device{Number: number, Name: fmt.Sprintf("sd%c", 'a'+i),
			Kind: blockdev.Disk, Disk: number, Size: 1 << 42, Scheduler: "none", Schedulers: []string{"none", "bfq"}})
	}
	return f
}

// Every set of files is imported; the policy is sound, comes back from every export, and holds what the files say, or
// the import has said why not.
func TestImports(t *testing.T) {
	accepted := 0
	for _, s := range sets(t) {
		for verb, im := range s.imports() {
			t.Run(s.name+"/"+verb, func(t *testing.T) {
				if im.err != nil {
					refused(t, im)
					return
				}
				accepted++
				p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: im.result.Policy}})
				if err != nil {
					t.Fatalf("the policy is not one: %v\n%s", err, im.result.Policy)
				}
				check(t, p)
				again(t, p)
				for _, what := range untraced(im) {
					t.Errorf("neither in the policy nor in the report: %s", what)
				}
				if testing.Verbose() {
					t.Log(said(im.result))
				}
			})
		}
	}
	if os.Getenv("MIGRATE") == "" && accepted < 30 {
		t.Errorf("%d imports were accepted", accepted)
	}
}

// refused holds a refusal to name places in the files. A set of this directory is not refused.
func refused(t *testing.T, im imported) {
	t.Helper()
	var problems policy.Problems
	if !errors.As(im.err, &problems) || len(problems) == 0 {
		t.Fatalf("the error is %T: %v", im.err, im.err)
	}
	for _, p := range problems {
		if p.Pos.Line == 0 || p.Msg == "" {
			t.Errorf("a problem without a place: %+v", p)
		}
	}
	if os.Getenv("MIGRATE") == "" {
		t.Errorf("refused: %v", im.err)
	}
	t.Logf("refused:\n%v", im.err)
}

// said is what an import said beside the policy.
func said(r *convert.Result) string {
	var b strings.Builder
	for _, part := range []struct {
		title string
		all   []convert.Remark
	}{{"changed", r.Changed}, {"left", r.Left}} {
		for _, remark := range part.all {
			fmt.Fprintf(&b, "%s: %s\n", part.title, remark)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return r.Policy + b.String()
}

// check holds a policy to a host on which everything fits.
func check(t *testing.T, p *policy.Policy) {
	t.Helper()
	var devices []string
	seen := map[string]bool{}
	policy.EachGroup(p.Groups, func(g *policy.Group) {
		for _, s := range g.Settings {
			if convert.IsDevice(s.On) && !seen[s.On] {
				seen[s.On] = true
				devices = append(devices, s.On)
			}
		}
	})
	f := large(devices)
	f.Systemd = slices.ContainsFunc(p.Groups, func(g *policy.Group) bool { return g.Slice != "" })
	_, problems := resolve.Policy(p, f)
	for _, problem := range problems {
		// A path or a name of a disk is of the host that the file is from.
		if s := problem.Msg; os.Getenv("MIGRATE") == "" || !strings.HasPrefix(s, "io.on ") {
			t.Errorf("check: %s", s)
		}
	}
}

// again holds the import of each export to be the same policy.
func again(t *testing.T, p *policy.Policy) {
	t.Helper()
	for form, do := range map[string]func() (*convert.Result, error){
		"cgconfig 1": func() (*convert.Result, error) {
			return libcgroup.Import(libcgroup.Export(p, libcgroup.Options{}).Files, nil)
		},
		"cgconfig 2": func() (*convert.Result, error) {
			return libcgroup.Import(libcgroup.Export(p, libcgroup.Options{Cgroup: 2}).Files, nil)
		},
		"slice": func() (*convert.Result, error) { return unitfile.Import(unitfile.Export(p).Files) },
	} {
		r, err := do()
		if err != nil {
			t.Errorf("import of the export as %s: %v", form, err)
			continue
		}
		got, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: r.Policy}})
		if err != nil {
			t.Errorf("import of the export as %s: %v", form, err)
			continue
		}
		if want, have := whole(p), whole(got); have != want {
			t.Errorf("import of the export as %s gave\n%s\nfor\n%s", form, have, want)
		}
	}
}

// whole is a policy in one form, whatever file it came from: what an export carries along is all of it.
func whole(p *policy.Policy) string { return libcgroup.Export(p, libcgroup.Options{}).Files[0].Text }
