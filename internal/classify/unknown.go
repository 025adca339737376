package classify

import (
	"fmt"
	"strings"

	"bulkhead/internal/policy"
)

// UnknownNames notes the users and Unix groups that a policy names and this host does not know, and the lists of rules
// that are empty. Such a rule matches nobody: a name misspelt, or a user that is yet to come.
func UnknownNames(p *policy.Policy, in Input) []policy.Note {
	u := unknown{look: newLook(Input{UserID: in.UserID, GroupID: in.GroupID})}
	u.groups(p.Groups)
	return u.notes
}

type unknown struct {
	look  *look
	notes []policy.Note
}

func (u *unknown) groups(groups []*policy.Group) {
	for _, g := range groups {
		if g.Each != nil {
			u.match(g, *g.Each)
		}
		for _, m := range g.Match {
			u.match(g, m)
		}
		if g.Match != nil && len(g.Match) == 0 {
			u.void(g, g.Pos, "an empty `match` matches no process; only `run` and `move` place one here")
		}
		u.groups(g.Groups)
	}
}

func (u *unknown) match(g *policy.Group, m policy.Match) {
	for _, name := range []struct {
		key, text string
		id        func(string) int
	}{{"user", m.User, u.look.uid}, {"unix_group", m.UnixGroup, u.look.gid}} {
		if name.text != "" && !strings.Contains(name.text, "{") && name.id(name.text) < 0 {
			u.void(g, m.Pos, fmt.Sprintf("%s %q is not known on this host: its rule matches no process", name.key,
				name.text))
		}
	}
	for _, x := range m.Except {
		u.match(g, x)
	}
}

func (u *unknown) void(g *policy.Group, at policy.Pos, text string) {
	u.notes = append(u.notes, policy.Note{Pos: at, Group: g.Path, Key: policy.KeyMatch, Text: text, Void: true})
}
