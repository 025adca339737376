package copies

import "github.com/spf13/cobra"

// Commands gives the verbs.
func (s Session) Commands() []*cobra.Command {
	return []*cobra.Command{s.layoutPlanCmd(), s.layoutApplyCmd(), s.layoutRollbackCmd(), s.layoutFinishCmd(),
		s.snapshotCmd(), s.listCmd(), s.pruneCmd(), s.cloneCmd(), s.refreshCmd(), s.startCmd(),
		s.dropCmd()}
}
