package selinux

import (
	"io"
	"os"
	"os/signal"
	"slices"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/usage"
	"bulkhead/internal/confinement"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/selinux/auditlog"
	"bulkhead/internal/transaction"
)

func checkCmd(out io.Writer, look func() (*transaction.Controller, error), print func(v any, text func()) error,
) *cobra.Command {
	var dsn []string
	c := &cobra.Command{
		Use:   "check [INSTANCE]",
		Short: "what SELinux and AppArmor would deny a database: labels, ports, domains, profiles",
		Long: `check shows the state of SELinux, of auditing and of AppArmor, the domain and the profile of each process
of a database, and holds each path and port that its settings name against the policy that this kernel has loaded and
against the file contexts of this host. A setting is taken from the server where --dsn says how to log in, else from
its arguments and its option files; places that its open files show are looked at, too. Each directory and link on the
way to a path counts.

Of what does not fit it says which type it has, which it should have, and what to type. That is the type which the file
contexts give the path, or else the path that packages of the engine have. Of a profile of AppArmor it says which rules
a path would need. Nothing is changed. Root may ask all of it.`,
		Example: `  bulkhead selinux check                   every database
  bulkhead selinux check mysql3306 --dsn mysql3306=@/root/mysql.dsn
                                           one, with the settings in force
  bulkhead selinux check --json | jq '.findings[] | {path, has, want}'`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			logins, err := usage.Logins(cmd, dsn)
			if err != nil {
				return err
			}
			c, err := look()
			if err != nil {
				return err
			}
			defer c.Close()
			all, err := recognise.OfHost(c.Host)
			if err != nil {
				return err
			}
			names := []string{}
			for _, i := range all {
				names = append(names, i.Name())
			}
			o := confinement.Options{Logins: logins}
			if len(args) == 1 {
				o.Instance = args[0]
			}
			if err := usage.Instances(cmd, names, o.Instance, logins); err != nil {
				return err
			}
			if o.AuditLogs, err = auditlog.Files(c.Host.Root); err != nil {
				return err
			}
			o.AuditLogs = slices.DeleteFunc(o.AuditLogs, func(name string) bool { return !c.Host.Root.Exists(name) })
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			r, err := confinement.Of(ctx, c.Host, all, o)
			if err != nil {
				return err
			}
			return print(r, func() { printCheck(out, r) })
		},
	}
	c.Flags().StringArrayVar(&dsn, "dsn", nil, usage.LoginsHelp)
	return c
}
