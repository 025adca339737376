package api

import "slices"

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

// Healthy is InForce, and an error also where a limit is not in force or nobody places new processes.
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
	}
	switch {
	case !st.Agent.Running:
		return Errorf(CodeUnplaced, "start the agent", "no agent is running: new processes are not placed")
	case st.Agent.Error != "":
		return Errorf(CodeUnplaced, "", "the agent's last look failed: %s", st.Agent.Error)
	}
	return nil
}
