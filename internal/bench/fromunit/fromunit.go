// Package fromunit has the groups of a policy take processes out of units of systemd.
package fromunit

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// groupHead is a group's name with its colon, and what follows on the line: a brace where the group is written in one.
var groupHead = regexp.MustCompile(`^[^:]*:[ \t]*(\{[ \t]*)?`)

// TakenOut is a policy whose groups take processes out of systemd units. All that a run starts is a part of the unit
// that the run itself is in, a service under a scheduler or in CI, and no limit would hold it there. Groups that
// already say so stay as they are.
func TakenOut(text string) (string, error) {
	parsed, err := parse.Policy([]policy.Source{{Path: "policy", Text: text}})
	if err != nil {
		return "", err
	}
	lines := strings.Split(text, "\n")
	// From the last one up, so that what is before keeps its place.
	groups := allGroups(parsed.Groups)
	slices.SortFunc(groups, func(a, b *policy.Group) int {
		return cmp.Or(b.Pos.Line-a.Pos.Line,
			b.Pos.Column-a.Pos.Column)
	})
	for _, g := range groups {
		if g.FromUnit {
			continue
		}
		i := g.Pos.Line - 1
		start := g.Pos.Column - 1
		if i < 0 || i >= len(lines) || start < 0 || start > len(lines[i]) {
			return "", fmt.Errorf("take the processes of group %q out of their unit: it is not at %s", g.Path, g.Pos)
		}
		head := groupHead.FindString(lines[i][start:])
		if strings.Contains(head, "{") {
			at := start + len(head)
			lines[i] = lines[i][:at] + "from_unit: true, " + lines[i][at:]
			continue
		}
		lines = slices.Insert(lines, i+1, indentOf(lines[i+1:])+"from_unit: true")
	}
	return strings.Join(lines, "\n"), nil
}

// allGroups are the groups of a policy and those below them.
func allGroups(of []*policy.Group) (all []*policy.Group) {
	for _, g := range of {
		all = append(append(all, g), allGroups(g.Groups)...)
	}
	return all
}

// indentOf is what the first line that says something begins with. A group without settings is an error in a policy, so
// below a group's name that is one of its own.
func indentOf(lines []string) string {
	for _, l := range lines {
		if said := strings.TrimLeft(l, " "); said != "" && said[0] != '#' {
			return l[:len(l)-len(said)]
		}
	}
	return ""
}
