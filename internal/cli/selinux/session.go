package selinux

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Session is what the verbs that change the host need of the command line.
type Session struct {
	Out   io.Writer
	Open  func() (*transaction.Controller, error) // the state directory too
	Print func(v any, text func()) error
	// Flags gives a verb the flags of changes, and then the request that they make.
	Flags func(c *cobra.Command) (request func(verb string) api.Request)
	// Change has a request done and prints what was done; Do prints nothing.
	Change func(cmd *cobra.Command, q api.Request) error
	Do     func(ctx context.Context, q api.Request) (*api.Reply, error)
	// Who is the person behind the command, for what is recorded.
	Who func() string
	// Audit asks for the state of auditing; nil is this kernel, where the host is not a captured one.
	Audit func() (audit.Status, error)
}

// audited is what the kernel says of records that it has lost, and a note where nobody takes them.
func (s Session) audited(c *transaction.Controller) (state.Audited, []string) {
	ask := s.Audit
	if ask == nil && c.Host.Root.Live() {
		ask = audit.Of
	}
	boot, err := audit.Boot(c.Host.Root)
	if ask == nil || err != nil {
		return state.Audited{}, nil
	}
	status, err := ask()
	switch {
	case err != nil:
		return state.Audited{}, []string{fmt.Sprintf("whether records of audit get lost is not known: %v", err)}
	case status.PID == 0 || status.Enabled == 0:
		return state.Audited{Boot: boot, Lost: status.Lost}, []string{"nobody takes the records of audit, so that " +
			"denials do not come into the log: start auditd, and switch auditing on (auditctl -e 1)"}
	}
	return state.Audited{Boot: boot, Lost: status.Lost}, nil
}

// whole sees that no change stands half done, by which denials would be judged: one that was interrupted is undone
// where something is to be changed, and said otherwise.
func whole(ctx context.Context, c *transaction.Controller, undo bool) error {
	txn, pending := c.Store.Pending()
	switch {
	case !pending:
		return nil
	case !undo:
		return api.Errorf(api.CodeFailed, "wait for its end; one that was interrupted is undone by `bulkhead rollback`",
			"%s has begun and not ended: a plan would take the half of it for all", txn.Verb)
	}
	lock, err := c.Lock(ctx, "selinux apply", "")
	if err != nil {
		return err
	}
	defer lock.Release()
	return c.Recover(ctx, &transaction.Outcome{})
}

// noSELinux is said where there is nothing to plan.
const noSELinux = "SELinux is not on here: this kernel has loaded no policy, so it denies nothing"

// permissive are the domains that bulkhead has made permissive.
func permissive(tuned []state.Tuned) (domains []string) {
	for _, t := range tuned {
		if domain := sepolicy.PermissiveIn(t.Name); domain != "" {
			domains = append(domains, domain)
		}
	}
	return domains
}
