//go:build root

package control

import (
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/testhost"
)

// libcgroup's own parser takes what is exported: limits that depend on each other in an order that the kernel takes,
// and a group without limits.
func TestExportIsLoadedByLibcgroup(t *testing.T) {
	s := newSite(t)
	onV1(t, s, "memory")
	p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: `version: 1
groups:
  outer:
    memory: {max: 1GiB, swap: 1GiB}
    cpu: {limit: 1}
    groups:
      inner: {memory: {max: 512MiB, swap: 0B}, cpu: {limit: 0.5, period: 200ms}}
  empty: {match: [{exe: nothing-of-that-name}]}
`}})
	if err != nil {
		t.Fatal(err)
	}
	root := s.loaded(libcgroup.Export(p, libcgroup.Options{Cgroup: 1}).Files[0].Text)
	tree := testhost.Tree(t)
	for _, want := range []struct{ controller, group, file, value string }{
		{"memory", "outer", "memory.limit_in_bytes", "1073741824"},
		{"memory", "outer", "memory.memsw.limit_in_bytes", "2147483648"},
		{"memory", "outer/inner", "memory.memsw.limit_in_bytes", "536870912"},
		{"cpu", "outer", "cpu.cfs_quota_us", "100000"},
		{"cpu", "outer/inner", "cpu.cfs_quota_us", "100000"},
		{"cpu", "outer/inner", "cpu.cfs_period_us", "200000"},
		{"cpu", "empty", "cpu.shares", "1024"},
	} {
		dir := cgroup.Dir{Hierarchy: s.of(want.controller).ID, Path: "/" + root + "/" + want.group}
		if got, err := tree.Read(dir.File(want.file)); err != nil || got != want.value {
			t.Errorf("%s of %s: %q, %v; want %s", want.file, want.group, got, err, want.value)
		}
	}
}
