package confined

import (
	"strings"
	"testing"

	"bulkhead/internal/linux/rights"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/systemd/sandbox"
)

// needy is a policy that needs all that one can.
const needy = `version: 1
agent: {fast_moves: on}
groups:
  reports:
    match: [{user: x}]
    owner: {user: x, may: [run, set]}
    io: [{on: asm:DATA, read: {iops: 500}}]
    network: [{on: eth0, egress: 100Mbit/s}]
host: {network: [{on: eth0, peer: "192.0.2.1:22"}]}
guard: {groups: {reports: {throughput_falls: 20%, dsn: "redis://localhost:6379"}}}
`

func needs(t *testing.T) []sandbox.Need {
	t.Helper()
	p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: needy}})
	if err != nil {
		t.Fatal(err)
	}
	return sandbox.Needs(p)
}

// Each setting that a policy may need can be tried.
func TestEachSettingIsTried(t *testing.T) {
	for _, setting := range sandbox.Settings(needs(t)) {
		if !rights.Knows(setting) {
			t.Errorf("%s: nothing tries it", setting)
		}
	}
	if rights.Knows("Nice=5") || rights.Knows("SystemCallFilter=@swap") {
		t.Error("it tries what it cannot")
	}
}

// Only what is needed and forbidden is refused, and the last of it says what to type.
func TestRefusals(t *testing.T) {
	all := needs(t)
	unit := &Unit{Name: "x.service", Forbids: func(s string) bool { return strings.HasPrefix(s, "Restrict") }}
	forbidden := unit.Forbidden(sandbox.Settings(all))
	got := Refusals(unit.Name, forbidden, all, "/srv/p.yaml", 3)
	if len(got) != 3 || !strings.Contains(got[0].Reason, "`network of group reports`") || got[0].Hint != "" ||
		!strings.Contains(got[2].Reason, "`guard of group reports`") || !strings.Contains(got[2].Hint,
		"`bulkhead --policy /srv/p.yaml unit --write --to 3 && systemctl daemon-reload && systemctl restart x`") {
		t.Errorf("%+v", got)
	}
	var none *Unit
	if got := Refusals("", none.Forbidden(sandbox.Settings(all)), all, "", 0); got != nil {
		t.Errorf("in no service it is refused: %+v", got)
	}
}
