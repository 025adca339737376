package api

import (
	"testing"

	"bulkhead/internal/verify"
)

// Each reason why a policy does not hold has an exit code of its own, for monitoring; the first of several counts.
func TestEachTroubleHasItsExitCode(t *testing.T) {
	differs := []verify.Limit{{Key: "cpu.limit"}}
	kept := []Member{{PID: 5, Comm: "backup", Kept: "cron.service"}}
	running := AgentStatus{Running: true}
	group := func(g GroupStatus) []GroupStatus { return []GroupStatus{g} }
	for name, c := range map[string]struct {
		status Status
		want   Code
	}{
		"all is well":            {Status{Agent: running, Groups: group(GroupStatus{})}, 0},
		"no policy and no agent": {Status{}, 0},
		"a limit differs":        {Status{Agent: running, Groups: group(GroupStatus{Limits: differs})}, CodeVerify},
		"a unit keeps a process": {Status{Agent: running, Groups: group(GroupStatus{Members: kept})}, CodeVerify},
		"the same, released": {Status{Agent: running,
			Groups: group(GroupStatus{Limits: differs, Members: kept, Released: true})}, 0},
		"everything is released": {Status{Released: []string{Everything}, Groups: group(GroupStatus{})}, CodeReleased},
		"cut off, and released":  {Status{Pending: "apply", Released: []string{Everything}}, CodeInterrupted},
		"no agent":               {Status{Groups: group(GroupStatus{})}, CodeUnplaced},
		"its look failed": {Status{Agent: AgentStatus{Running: true, Error: "no /proc"},
			Groups: group(GroupStatus{})}, CodeUnplaced},
	} {
		got := Code(0)
		if err := c.status.Healthy(); err != nil {
			got = CodeOf(err)
		}
		if got != c.want {
			t.Errorf("%s: exit code %d, want %d", name, got, c.want)
		}
	}
}
