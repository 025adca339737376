//go:build root

package control

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"bulkhead/internal/testhost"
	"bulkhead/internal/verify"
)

// cpuRow is what a probe says of the limit on CPU time that it measured.
func cpuRow(t *testing.T, all []verify.Result) verify.Result {
	t.Helper()
	i := slices.IndexFunc(all, func(r verify.Result) bool { return r.Key == policy.KeyCPULimit && r.How == "alone" })
	if i < 0 {
		t.Fatal("the limit on CPU time was not measured")
	}
	return all[i]
}

// Under systemd a load is put inside: into the unit that carries the group's limits, or as a scope in the group's
// slice. A limit that a daemon-reload takes away is found, and the reload named.
func TestProbeUnderSystemd(t *testing.T) {
	s := newUnitSite(t)
	s.Controller.Probe = []string{"be-a-load", s.state}
	program, rule := s.sleeper(84001)
	unit := s.service("db", program)
	mark := fmt.Sprintf("84002.%d", os.Getpid())
	loose(t, s, testhost.Spawn(t, "sleep", mark))
	s.apply(fmt.Sprintf("groups:\n  app: {match: [{cmdline: '%s'}], cpu: {limit: 0.4}}\n  jobs: {match: [{cmdline: "+
		"'^sleep %s$'}], cpu: {limit: 0.3}}\n",
		rule, strings.ReplaceAll(mark, ".", "[.]")))
	for _, group := range []string{"app", "jobs"} {
		if r := cpuRow(t, s.probed(verify.Options{Groups: []string{group}})); r.Verdict != probe.NotMeasured ||
			!strings.Contains(r.Reason, "--inside") {
			t.Errorf("%s, beside a unit: %s: %s", group, r.Verdict, r.Reason)
		}
		all := s.probed(verify.Options{Groups: []string{group}, Inside: true})
		if r := cpuRow(t, all); r.Verdict != probe.Held && r.Verdict != probe.NotReached {
			t.Errorf("%s, inside: %s, measured %s: %s", group, r.Verdict, r.Measured, r.Reason)
		}
		if slices.ContainsFunc(all, func(r verify.Result) bool { return r.Verdict.Fault() }) {
			t.Errorf("%s: something is called wrong: %+v", group, all)
		}
	}
	dir := filepath.Join("/etc/systemd/system", unit+".d")
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "zz-own.conf"), []byte("[Service]\nCPUQuota=\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.reload(1)
	if r := cpuRow(t, s.probed(verify.Options{Groups: []string{"app"},
		Inside: true})); r.Verdict != probe.NotEnforced || !strings.Contains(r.Reason, "daemon-reload") {
		t.Errorf("after a daemon-reload that takes the limit away: %s, measured %s: %s", r.Verdict, r.Measured,
			r.Reason)
	}
}
