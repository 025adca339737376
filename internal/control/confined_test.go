package control

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/systemd/sandbox/confined"
)

// What the agent's unit forbids is refused before anything is changed, with what to type next: of the policy, and of
// the one in force. Undoing a change is never held up.
func TestForbiddenByTheUnit(t *testing.T) {
	const owned = "groups: {a: {match: [{exe: sleep}], tasks: 50, owner: {user: root, may: [set]}}}\n"
	const plain = "groups: {a: {match: [{exe: sleep}], tasks: 50}}\n"
	m := newMachine(t, "252")
	forbids := true
	m.Unit = &confined.Unit{Name: "bulkhead.service", Forbids: func(setting string) bool {
		return forbids && strings.HasPrefix(setting, "CapabilityBoundingSet=CAP_CHOWN")
	}}
	refused := func(r api.Request, next string) {
		t.Helper()
		was := m.kernel.Dump()
		_, err := m.do(r)
		var refusal *apply.RefusedError
		if !errors.As(err, &refusal) {
			t.Fatalf("%s is not refused: %v", r.Verb, err)
		}
		last := refusal.Refusals[len(refusal.Refusals)-1]
		if !strings.Contains(last.Reason, "bulkhead.service forbids the agent what `owner of group a` asks for") ||
			!strings.Contains(last.Hint, "`"+next+" && systemctl daemon-reload && systemctl restart bulkhead`") {
			t.Errorf("%s is refused with %+v", r.Verb, last)
		}
		if is := m.kernel.Dump(); is != was {
			t.Errorf("%s has done something:\n%s\nbefore:\n%s", r.Verb, is, was)
		}
	}
	ask := api.Request{Verb: "apply", Sources: m.policy(owned)}
	refused(ask, "bulkhead --policy test.yaml unit --write")
	ask.DryRun = true
	refused(ask, "bulkhead --policy test.yaml unit --write")
	if len(Confined(m.Controller)) != 0 {
		t.Error("nothing is in force, and something of it is forbidden")
	}

	m.apply(plain)
	refused(api.Request{Verb: "apply", Sources: m.policy(owned), Canary: "a"},
		"bulkhead --policy test.yaml unit --write")
	forbids = false
	m.apply(owned)
	forbids = true
	if len(Confined(m.Controller)) != 1 {
		t.Errorf("of the policy in force is forbidden: %v", Confined(m.Controller))
	}
	// The owner's files are to be given back.
	refused(api.Request{Verb: "apply", Sources: m.policy(plain)}, "bulkhead --policy test.yaml unit --write")
	refused(api.Request{Verb: "rollback", To: 1}, "bulkhead unit --write --to 1")
	ask = api.Request{Verb: "apply", Sources: m.policy(plain), Force: true, Reason: "all the same"}
	if _, err := m.do(ask); err != nil {
		t.Errorf("with --force: %v", err)
	}

	forbids = false
	m.atTime("23 12:00")
	m.onTrial(api.Request{Verb: "apply", Sources: m.policy(owned)}, 30*time.Second)
	forbids = true
	m.atTime("23 12:01")
	m.tended()
	_, now, err := m.Recorded()
	m.must(err)
	if !slices.Equal(now.Applied.Sources, m.policy(plain)) {
		t.Errorf("nobody has confirmed it, and in force is %v", now.Applied.Sources)
	}
}

// What an override asks for and the unit forbids is refused before anything is changed; other limits are set.
func TestForbiddenToSet(t *testing.T) {
	m := newMachine(t, "252")
	m.apply("groups: {a: {match: [{exe: sleep}], tasks: 50}}\n")
	m.Unit = &confined.Unit{Name: "bulkhead.service", Forbids: func(setting string) bool {
		return strings.HasPrefix(setting, "DeviceAllow=")
	}}
	was := m.kernel.Dump()
	for _, dry := range []bool{true, false} {
		_, err := m.do(api.Request{Verb: "set", Assign: []string{"a:io.read.iops=5"}, On: "asm:DATA", DryRun: dry})
		var refusal *apply.RefusedError
		if !errors.As(err, &refusal) {
			t.Fatalf("it is not refused: %v", err)
		}
		if len(refusal.Refusals) != 1 || !strings.Contains(refusal.Refusals[0].Reason,
			"bulkhead.service forbids the agent what `io of group a` asks for") ||
			!strings.Contains(refusal.Refusals[0].Hint, "policy file") {
			t.Errorf("it is refused with %+v", refusal.Refusals)
		}
	}
	if is := m.kernel.Dump(); is != was {
		t.Errorf("it has done something:\n%s\nbefore:\n%s", is, was)
	}
	if _, err := m.do(api.Request{Verb: "set", Assign: []string{"a:tasks=40"}}); err != nil {
		t.Errorf("what it may do: %v", err)
	}
}
