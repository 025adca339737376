// Package bench is the proofs: scenarios that load a real database, set neighbours on it, and measure
// what a policy does about them. Each brings its own throw-away server and takes everything away again.
//
// It is the one place outside tests that starts programs: the server, the load generator, the
// neighbours, and bulkhead itself, which it drives through its command line as a person would.
package bench

import "time"

// Scenario is one proof that `bulkhead bench` can run.
type Scenario struct {
	Name    string        `json:"name"`
	Summary string        `json:"summary"`
	Takes   time.Duration `json:"takes_ns"` // about
	Needs   []string      `json:"needs"`    // Debian packages
}

// List returns the scenarios there are.
func List() []Scenario {
	return []Scenario{{
		Name:    "demo",
		Summary: "a MariaDB alone, beside CPU, memory and disk hogs, and beside the same under a policy",
		Takes:   estimate(DemoOptions{}.withDefaults()),
		Needs:   packagesOf(demoPrograms),
	}}
}
