package control

import (
	"fmt"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/transaction"
)

// unclaimed refuses to take by hand what a rule has put into another group, or a database server: its limits would be
// others from then on. Owners, who cannot force it, take only what is theirs.
func unclaimed(v *transaction.View, r api.Request, procs []procfs.Process) error {
	if r.Force || r.Caller != nil {
		return nil
	}
	why := map[procfs.ID]string{}
	for _, inst := range v.Instances {
		why[inst.Main] = fmt.Sprintf("it is the server of %s", inst)
	}
	in := map[procfs.ID]string{}
	for _, m := range v.Members {
		in[m.Process.ID] = m.Group
		if m.By == classify.ByRule {
			why[m.Process.ID] = fmt.Sprintf("a rule puts it into group %q (%s)", m.Group, m.Rule)
		}
	}
	for _, p := range procs {
		if text, claimed := why[p.ID]; claimed && in[p.ID] != r.Group {
			return api.Errorf(api.CodeRefused,
				"--force --reason TEXT moves it all the same; `bulkhead move --back` undoes that",
				"move process %d (%s): %s", p.PID, p.Comm, text)
		}
	}
	return nil
}
