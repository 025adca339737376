package convert

import (
	"strings"

	"bulkhead/internal/policy"
)

// Flow is a whole policy in one form whatever file it came from: two policies that ask for the same give the same text.
func Flow(p *policy.Policy) string {
	var b strings.Builder
	b.WriteString("host: " + hostFlow(p.Host) + "\n")
	if text := agentFlow(p.Agent); text != "" {
		b.WriteString("agent: " + text + "\n")
	}
	var walk func(groups []*policy.Group)
	walk = func(groups []*policy.Group) {
		for _, g := range groups {
			b.WriteString(g.Path + ": " + GroupFlow(g) + "\n")
			if g.Each == nil {
				walk(g.Groups)
			}
		}
	}
	walk(p.Groups)
	b.WriteString("schedules: " + listOf(p.Schedules, scheduleFlow) + "\n")
	return b.String()
}
