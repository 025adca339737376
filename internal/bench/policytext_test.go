package bench

import (
	"testing"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// The policy of the demo takes processes out of units where systemd is PID 1.
func TestDemoTakenOutOfUnits(t *testing.T) {
	s := demoScenario(t)
	r := newRun(fitted{scenario: s, machine: machine{facts: &host.Facts{Systemd: true}, cpus: 2, available: 1 << 30,
		dir: "/var/tmp"}}, Options{})
	r.fit()
	r.databases = []*database.Instance{{Database: s.Databases[0], Kind: database.MariaDB, Port: 3307,
		Socket: "/x/mysqld.sock"}}
	text, err := r.governor.policyText("ours")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parse.Policy([]policy.Source{{Path: "p", Text: text}})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, g := range parsed.Groups {
		if !g.FromUnit {
			t.Errorf("group %q: from_unit is not there:\n%s", g.Path, text)
		}
	}
}
