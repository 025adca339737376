package control

import (
	"errors"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/policy"
)

// The owners of a group's files are set, put right by the agent, given up with the policy's and restored by a rollback.
func TestOwnersOfAGroup(t *testing.T) {
	m := newMachine(t, "252")
	const limits, owned = "groups:\n  shop: {cpu: {limit: 1}, ",
		"owner: [{user: 54321, unix_group: 54330, may: [run, move], mode: '0664'}, {unix_group: 54330, may: [set], " +
			"directory: '0775'}]}\n"
	const slice = "/bulkhead.shop.slice"
	m.apply(limits + owned)
	file := func(name string) cgroup.File { return at(slice).File(cgroup.OwnerOf(name)) }
	holds := func(when, name, want string) {
		t.Helper()
		got, err := cgroup.Owners{Tree: m.kernel.Tree}.Read(t.Context(), file(name).String())
		if err != nil || got != want {
			t.Errorf("%s: %s is owned by %q, want %q: %v", when, name, got, want, err)
		}
	}
	all := func(when string) {
		t.Helper()
		holds(when, "cgroup.procs", "54321:54330 0664")
		holds(when, ".", "0:54330 0775")
		holds(when, "cpu.max", "0:54330 0644")
		holds(when, "cpu.stat", "0:54330 0444")
	}
	all("applied")
	if reply := m.apply(limits + owned); len(reply.Plan.Steps) > 0 {
		t.Errorf("applied twice: %v", reply.Plan.Steps)
	}
	m.must(cgroup.Owners{Tree: m.kernel.Tree}.Write(t.Context(), file("cgroup.procs").String(), "0:0 0644"))
	if _, err := m.full(); err != nil {
		t.Error(err)
	}
	all("put right")
	m.apply(limits + "tasks: 100}\n")
	holds("no longer asked for", "cgroup.procs", "0:0 0644")
	holds("no longer asked for", ".", "0:0 0755")
	holds("no longer asked for", "cpu.max", "0:0 0644")
	if _, err := m.do(api.Request{Verb: "rollback", To: 1}); err != nil {
		t.Fatal(err)
	}
	all("rolled back")
	_, err := m.do(api.Request{Verb: "apply",
		Sources: m.policy(limits + "owner: {user: nobody-at-all, may: [run]}}\n")})
	var problems policy.Problems
	if !errors.As(err, &problems) || !strings.Contains(problems[0].Msg, `there is no user "nobody-at-all"`) ||
		problems[0].Pos.Line == 0 {
		t.Errorf("an owner that is not there: %v", err)
	}
	m.release()
}
