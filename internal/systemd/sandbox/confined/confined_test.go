package confined

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	sets := []string{"@chown", "@mount", "bpf"}
	for _, setting := range sandbox.Settings(needs(t)) {
		key, value, _ := strings.Cut(setting, "=")
		if tries[key] == nil {
			t.Errorf("%s: nothing tries it", setting)
		}
		for word := range strings.FieldsSeq(value) {
			if _, known := capabilities[word]; key == "CapabilityBoundingSet" && !known ||
				key == "SystemCallFilter" && !slices.Contains(sets, word) {
				t.Errorf("%s: nothing tries %s", setting, word)
			}
		}
	}
}

// A path that is mounted read-only is forbidden; one that is not, or is not there, is not.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	if forbids("ReadWritePaths=-" + dir) {
		t.Errorf("%s is forbidden", dir)
	}
	if forbids("ReadWritePaths=" + filepath.Join(dir, "none")) {
		t.Error("what is not there is forbidden")
	}
	if forbids("Nice=5") || forbids("") {
		t.Error("what nothing tries is forbidden")
	}
}

func TestServiceOf(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/bulkhead.service\n":                                                   "bulkhead.service",
		"4:pids:/x.service\n1:name=systemd:/system.slice/a@1.service\n0::/system.slice\n":       "a@1.service",
		"0::/user.slice/user-0.slice/session-2.scope\n1:name=systemd:/user.slice/session.scope": "",
		"5:pids:/system.slice/bulkhead.service\n0::/\n":                                         "",
		"": "",
	} {
		if got := serviceOf(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil && Own() != nil {
		t.Errorf("without systemd this runs in %q", Own().Name)
	}
}

// Only what is needed and forbidden is refused, and the last of it says what to type.
func TestRefusals(t *testing.T) {
	all := needs(t)
	unit := &Unit{Name: "x.service", Forbids: func(s string) bool { return strings.HasPrefix(s, "Restrict") }}
	forbidden := unit.Forbidden(sandbox.Settings(all))
	got := Refusals(unit.Name, forbidden, all, "/srv/p.yaml", 3)
	if len(got) != 2 || !strings.Contains(got[0].Reason, "`network of group reports`") || got[0].Hint != "" ||
		!strings.Contains(got[1].Reason, "`guard of group reports`") || !strings.Contains(got[1].Hint,
		"`bulkhead --policy /srv/p.yaml unit --write --to 3 && systemctl daemon-reload && systemctl restart x`") {
		t.Errorf("%+v", got)
	}
	var none *Unit
	if got := Refusals("", none.Forbidden(sandbox.Settings(all)), all, "", 0); got != nil {
		t.Errorf("in no service it is refused: %+v", got)
	}
}
