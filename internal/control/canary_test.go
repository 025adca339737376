package control

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/inspect"
	"bulkhead/internal/state"
)

// flock is two groups with a limit on memory each, which the first one's rule decides.
func flock(first, second string) string {
	return "groups:\n  one: {role: helper, match: [{exe: backup}], memory: {max: " + first +
		"}}\n  two: {role: helper, match: [{exe: httpd}], memory: {max: " + second + "}}\n"
}

func (m *machine) limits(when, one, two string) {
	m.t.Helper()
	m.reads(when, "/bulkhead.one.slice", "memory.max", one)
	m.reads(when, "/bulkhead.two.slice", "memory.max", two)
}

const gib, gib2, gib4 = "1073741824", "2147483648", "4294967296"

func TestCanaryGoesFirst(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.start("/usr/bin/httpd")
	m.atTime("23 12:00")
	m.apply(flock("1GiB", "1GiB"))
	reply, err := m.do(api.Request{Verb: "apply", Sources: m.policy(flock("2GiB", "4GiB")), Canary: "one",
		CanaryFor: time.Second, Reason: "more", Migrate: true})
	m.must(err)
	if want := "guard: group one did too little in the 1s before this " +
		"change"; !strings.Contains(strings.Join(reply.Notes, "\n"), want) {
		t.Errorf("the notes are %q", reply.Notes)
	}
	m.limits("the canary", gib2, gib)
	if done, err := m.full(); err != nil || done.Repaired > 0 {
		t.Errorf("a look meanwhile: %+v, %v", done, err)
	}
	for _, r := range []api.Request{{Verb: "apply", Sources: m.policy(flock("1GiB", "2GiB"))},
		{Verb: "set", Assign: []string{"two:tasks=5"}}, {Verb: "confirm"}} {
		if _, err := m.do(r); api.CodeOf(err) != api.CodeLocked ||
			!strings.Contains(err.Error(), "the canary by test is watched until") {
			t.Errorf("%s meanwhile: %v", r.Verb, err)
		}
	}
	m.tended()
	m.limits("before its time is over", gib2, gib)
	m.atTime("23 12:01")
	m.tended()
	m.limits("before a window was seen", gib2, gib)
	m.watched()
	m.limits("when its time is over", gib2, gib4)
	if st, err := inspect.Status(t.Context(), m.Reconciler.Controller); err != nil || st.Trial != nil ||
		st.Revision != 2 {
		t.Errorf("then: %+v, %v", st, err)
	}
	entries, err := m.Store.History()
	m.must(err)
	var told []string
	for _, e := range entries {
		told = append(told, strings.TrimSpace(e.Verb+" "+e.What))
	}
	if got := strings.Join(told, "; "); got != "apply; canary one --migrate; apply --migrate" {
		t.Errorf("the history says %q", got)
	}
	if done, err := m.full(); err != nil || done.Repaired > 0 {
		t.Errorf("a look after it: %+v, %v", done, err)
	}
}

// A canary that does badly is undone, and the others never heard of it.
func TestCanaryThatDoesBadly(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "rollback", "refused"} {
		m := newMachine(t, "252.39")
		p := m.start("/usr/bin/backup all")
		m.start("/usr/bin/httpd")
		m.atTime("23 12:00")
		m.apply(flock("1GiB", "1GiB"))
		before := m.state()
		_, err := m.do(api.Request{Verb: "apply", Sources: m.policy(flock("64MiB", "2GiB")), Canary: "one",
			CanaryFor: time.Second})
		m.must(err)
		m.limits("the canary", "67108864", gib)
		switch how {
		case "killed":
			m.tended()
			if m.kernel.Charge(p.PID, cgroupfake.Anonymous, 128<<20) == nil {
				t.Fatal("the kernel kills nobody")
			}
			(*machineKernel)(m).End(p.PID)
			m.trials = nil
			m.tended()
		case "rollback":
			reply, err := m.do(api.Request{Verb: "rollback"})
			m.must(err)
			if reply.Text != "undid the canary by test" {
				t.Errorf("rollback says %q", reply.Text)
			}
		case "refused": // what is to follow cannot be applied when its time has come
			canary := state.Canary{Group: "one", Sources: m.policy("groups: {one: {cpu: {limit: 999}}}\n")}
			lock, err := m.Lock(t.Context(), "test", "test")
			m.must(err)
			m.must(m.Store.Save(state.DocCanary, canary))
			lock.Release()
			m.atTime("23 12:05")
			m.tended()
			m.watched()
		}
		m.limits(how, gib, gib)
		if after := m.state(); how == "rollback" && after != before {
			t.Errorf("%s:\n%s", how, differs(after, before))
		}
		if st, err := inspect.Status(t.Context(), m.Reconciler.Controller); err != nil || st.Trial != nil ||
			st.Revision != 1 {
			t.Errorf("%s: %+v, %v", how, st, err)
		}
	}
}

func TestCanariesThatCannotBe(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.start("/usr/bin/httpd")
	ask := func(text, group, want string) {
		t.Helper()
		before := m.state()
		_, err := m.do(api.Request{Verb: "apply", Sources: m.policy(text), Canary: group})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("canary %q: %v, want %q", group, err, want)
		}
		if after := m.state(); after != before {
			t.Errorf("canary %q:\n%s", group, differs(after, before))
		}
	}
	ask(flock("1GiB", "1GiB"), "one", "none is")
	m.apply(flock("1GiB", "1GiB"))
	ask(flock("2GiB", "2GiB"), "three", `no group "three"`)
	ask("groups: {two: {role: helper, match: [{exe: httpd}], memory: {max: 2GiB}}}\n", "one", `has no group "one"`)
	ask(flock("1GiB", "2GiB"), "one", "what is in force")
	ask(flock("2GiB", "900GiB"), "one", "memory.max")
	m.release("one")
	ask(flock("2GiB", "2GiB"), "one", "released")
	if _, err := m.do(api.Request{Verb: "set", Assign: []string{"two:tasks=5"},
		Canary: "two"}); api.CodeOf(err) != api.CodeUsage {
		t.Errorf("set with a canary: %v", err)
	}
}
