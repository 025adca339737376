package control

import (
	"fmt"

	"bulkhead/internal/classify"
	"bulkhead/internal/policy"
)

// numberOwners gives the owners of groups their numbers on this host.
func (c *Controller) numberOwners(groups []classify.Group) (problems policy.Problems) {
	number := func(name, what string, at policy.Pos, id func(string) (int, bool)) int {
		if name == "" {
			return 0
		}
		n, known := id(name)
		if !known {
			problems = append(problems, policy.Problem{Pos: at, Msg: fmt.Sprintf("owner: there is no %s %q on this host", what, name),
				Hint: "names are looked up in /etc/passwd and /etc/group; write the number of one that only LDAP, SSSD or NIS knows"})
		}
		return n
	}
	for i := range groups {
		for j := range groups[i].Owner {
			o := &groups[i].Owner[j]
			o.UID = number(o.User, "user", o.Pos, c.Host.Users.UserID)
			o.GID = number(o.UnixGroup, "Unix group", o.Pos, c.Host.Users.GroupID)
		}
	}
	return problems
}

// looksAtOwners says whether a look reads who owns the files of groups. The agent does so where the policy has owners; who
// changes something also sees what an earlier policy left.
func looksAtOwners(v *View) bool {
	if !v.byAgent {
		return true
	}
	for _, g := range v.Classified.Groups {
		if len(g.Owner) > 0 {
			return true
		}
	}
	return false
}
