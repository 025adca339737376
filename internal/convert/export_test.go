package convert

import (
	"strings"

	"bulkhead/internal/policy"
)

// Flow is a whole policy in one form whatever file it came from: two policies that ask for the same give the same text.
func Flow(p *policy.Policy) string {
	var b strings.Builder
	for _, block := range TopBlocks(p) {
		b.WriteString(block.Key + ": " + block.Text + "\n")
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
	return b.String()
}
