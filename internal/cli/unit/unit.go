// Package unit is the verb `unit`: what systemd's bulkhead.service must allow for the policy file. Command gives it.
package unit

import (
	"io"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/sandbox"
)

// Command gives the verb. It prints to out, or with --json by print, and reads the policy by parsed.
func Command(out io.Writer, parsed func() (*policy.Policy, error), print func(any, func()) error) *cobra.Command {
	var file bool
	c := &cobra.Command{
		Use:   "unit",
		Short: "what bulkhead.service must allow for the policy",
		Long: `unit says what the policy file asks for and the packaged bulkhead.service forbids the agent. --print
gives a drop-in that allows it, and no more; nothing when the packaged unit will do. On a host without systemd nothing
is forbidden.`,
		Example: `  bulkhead unit
  mkdir -p /etc/systemd/system/bulkhead.service.d
  bulkhead unit --print >/etc/systemd/system/bulkhead.service.d/policy.conf
  systemctl daemon-reload && systemctl restart bulkhead`,
		RunE: func(*cobra.Command, []string) error {
			p, err := parsed()
			if err != nil {
				return err
			}
			needs := sandbox.Needs(p)
			if file {
				_, err := io.WriteString(out, sandbox.DropIn(needs))
				return err
			}
			return print(render.OrEmpty(needs), func() {
				switch {
				case len(needs) == 0:
					render.Println(out, "bulkhead.service as packaged allows all that the policy asks for")
				default:
					for _, n := range needs {
						render.Printf(out, "%s: %s\n", n.For, n.Because)
					}
					render.Println(out, "`bulkhead unit --print` prints a drop-in that allows it")
				}
			})
		},
	}
	c.Flags().BoolVar(&file, "print", false, "the drop-in, for /etc/systemd/system/bulkhead.service.d")
	return c
}
