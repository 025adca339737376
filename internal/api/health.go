package api

import (
	"slices"
	"strconv"
	"strings"
)

// InForce is an error with the exit code that says why the applied policy is not in force: a change was cut off, or
// everything was released.
func (st *Status) InForce() error {
	switch {
	case st.Pending != "":
		return Errorf(CodeInterrupted, "`bulkhead rollback` undoes it", "a change was interrupted: %s", st.Pending)
	case slices.Contains(st.Released, Everything):
		return Errorf(CodeReleased, "`bulkhead apply` puts the policy in force again",
			"everything is released: no limit is in force")
	}
	return nil
}

// Placing is an error with the exit code that says why new processes are not put into the groups of the applied policy:
// no agent runs, or its last look failed. It is nil where there is no group.
func (st *Status) Placing() error {
	switch {
	case len(st.Groups) == 0:
		return nil
	case !st.Agent.Running:
		return Errorf(CodeUnplaced, "`systemctl start bulkhead` starts the agent; without systemd "+
			"`bulkhead agent` does",
			"no agent is running: new processes are not placed")
	case st.Agent.Error != "":
		return Errorf(CodeUnplaced, "", "the agent's last look failed: %s", st.Agent.Error)
	}
	return nil
}

// Healthy is InForce and Placing, and an error also where a limit is not in force, or does not hold a process of its
// group.
func (st *Status) Healthy() error {
	if err := st.InForce(); err != nil {
		return err
	}
	for _, g := range st.Groups {
		for _, l := range g.Limits {
			if !g.Released && l.Fault() {
				return Errorf(CodeVerify, "`bulkhead status "+g.Group+"` says more", "%s of group %s is not in force",
					l.Key, g.Group)
			}
		}
		for _, m := range g.Members {
			if !g.Released && m.Kept != "" {
				return Errorf(CodeVerify, "`bulkhead explain "+strconv.Itoa(m.PID)+"` says more",
					"no limit of group %s holds process %d (%s): %s keeps it", g.Group, m.PID, m.Comm, m.Kept)
			}
		}
	}
	return st.Placing()
}

// Only keeps the named groups and those below them, all of them when none is named.
func (st *Status) Only(names []string) error {
	var known, kept []string
	st.Groups = slices.DeleteFunc(st.Groups, func(g GroupStatus) bool {
		known = append(known, g.Group)
		return len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool {
			return g.Group == n || strings.HasPrefix(g.Group, n+"/")
		})
	})
	for _, g := range st.Groups {
		kept = append(kept, g.Group)
	}
	if i := slices.IndexFunc(names, func(n string) bool { return !slices.Contains(kept, n) }); i >= 0 {
		return NoGroup(names[i], known)
	}
	return nil
}
