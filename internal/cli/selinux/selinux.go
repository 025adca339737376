// Package selinux is the verb selinux of the command line: what SELinux denies to databases, and what puts it right.
package selinux

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/usage"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/verdict"
	"bulkhead/internal/transaction"
)

// Command gives the verb. It writes to out, looks at the host through look, and answers with print.
func Command(out io.Writer, look func() (*transaction.Controller, error), print func(v any, text func()) error,
) *cobra.Command {
	c := &cobra.Command{
		Use:   "selinux",
		Short: "what SELinux denies to databases, and what puts it right",
		Long: `selinux says what SELinux denies, or would deny, to databases and what puts it right, sets that, and
takes it back. It never switches SELinux off: most denials are a wrong label, a wrong port or a script's fault, and few
need a rule.`,
		Example: `  bulkhead selinux check
  bulkhead selinux explain
  bulkhead selinux plan
  bulkhead selinux apply --confirm-within 10m`,
	}
	c.AddCommand(checkCmd(out, look, print), explainCmd(out, look, print))
	return c
}

// Changes are the verbs that change something, or make a plan of it.
func Changes(s Session) []*cobra.Command {
	return []*cobra.Command{s.plan(), s.apply(), s.rollback(), s.export(), s.soak()}
}

func explainCmd(out io.Writer, look func() (*transaction.Controller, error), print func(v any, text func()) error,
) *cobra.Command {
	var since time.Time
	var elsewhere bool
	c := &cobra.Command{
		Use:   "explain [FILE]",
		Short: "what each denial in a log comes from, and the rules that are left",
		Long: `explain reads denials from the logs of auditd, those that were rotated too, or from FILE, "-" for
standard input: an audit log, what ausearch prints (better without -i), the journal or dmesg. It groups them as
audit2allow does, and says of each group what it comes from, with the lines that show it: a wrong label, a wrong port,
a program in the wrong domain, a boolean, the fault of a script, a constraint, nothing any more, or a rule that is
needed. Rules that would allow too much are marked.

What a path or a port should be is asked of the policy that this kernel has loaded and of its file contexts (root may
read them). Without them that part stays undecided. Nothing is changed.`,
		Example: `  bulkhead selinux explain                        the audit log of this host
  bulkhead selinux explain --since "2026-11-25 08:00"
  journalctl -k | bulkhead selinux explain -      where no auditd runs
  bulkhead selinux explain --elsewhere audit.log  a log of another host: do not
                                                  ask the policy of this one
  bulkhead selinux explain --json | jq -r '.needed_rules[]'`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if elsewhere && len(args) == 0 {
				return usage.Errorf(cmd, "--elsewhere is for a log of another host: name its file")
			}
			c, err := look()
			if err != nil {
				return err
			}
			defer c.Close()
			v := &view{}
			log := &avc.Log{}
			if len(args) == 0 {
				v.Read, err = readAudit(c.Host.Root, log, time.Now())
			} else {
				v.Read, err = args[:1], readNamed(cmd.InOrStdin(), args[0], log, time.Now())
			}
			if err != nil {
				return err
			}
			log.Since(since)
			host := loaded.None()
			if !elsewhere {
				host = loaded.Of(c.Host.Root)
			}
			v.fill(log, host, verdict.Judge(log, host.Ask))
			return print(v, func() { printView(out, v) })
		},
	}
	usage.MomentFlag(c, &since, "since", "only denials from this `time` on")
	c.Flags().BoolVar(&elsewhere, "elsewhere", false, "FILE is of another host: ask nothing of this one")
	return c
}
