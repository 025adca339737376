package advice

import (
	"cmp"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/linux/tunable/mounted"
	"bulkhead/internal/linux/tunable/optionfile"
	"bulkhead/internal/linux/tunable/sepolicy"
)

func tuneStatusCmd(s Session) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "which settings are kept, by whom, and what they were before",
		Args:  usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.Open()
			if err != nil {
				return err
			}
			defer c.Close()
			all, err := inspect.Tuning(cmd.Context(), c)
			if err != nil {
				return err
			}
			return s.Print(all, func() { printTuned(s.Out, all) })
		},
	}
}

func printTuned(out io.Writer, all []api.Tuning) {
	if len(all) == 0 {
		render.Println(out, "no setting of the kernel is kept: neither host.tune nor `tune apply` has one")
		return
	}
	for _, t := range all {
		differs := !t.Limit && !tunable.Same(tunable.Target(t.Name), t.Wanted, t.Holds)
		for _, text := range []*string{&t.Wanted, &t.Holds, &t.Before, &t.Running} {
			*text = sepolicy.Human(*text)
		}
		render.Printf(out, "%s = %s\n", t.Name, t.Wanted)
		if t.Disk != "" {
			render.Printf(out, "  disk     %s\n", t.Disk)
		}
		if t.Limit {
			render.Printf(out, "  limit    of a group: `bulkhead verify` reads it back\n")
		} else if differs {
			render.Printf(out, "  DIFFERS  it is %s\n", cmp.Or(t.Holds, missingFrom(t)))
		}
		render.Printf(out, "  by       %s\n", t.From)
		if t.Before != "" {
			render.Printf(out, "  before   %s\n", t.Before)
		}
		if t.UntilBoot {
			render.Printf(out, "  at boot  nothing sets it: the disk has no serial number or WWID; the agent does\n")
		}
		if t.Waits {
			render.Printf(out, "  waits    for a reboot\n")
		}
		if t.Running != "" {
			what := "the running process has"
			if strings.HasPrefix(t.Name, sepolicy.Prefix) {
				what = "in force is"
			}
			if strings.HasPrefix(t.Name, mounted.Prefix) {
				what = "it is mounted with"
			}
			render.Printf(out, "  DIFFERS  %s %s\n", what, t.Running)
		}
		if t.Overruled != "" {
			when := "at boot "
			if t.Unit || strings.HasPrefix(t.Name, optionfile.Prefix) {
				when = "at start"
			}
			render.Printf(out, "  %s %s, after bulkhead's file: take that line out\n", when, t.Overruled)
		}
	}
}

// missingFrom says where a setting that is not there should be.
func missingFrom(t api.Tuning) string {
	switch {
	case t.Unit:
		return "not in the drop-in of the service"
	case strings.HasPrefix(t.Name, mounted.Prefix):
		return "not in " + mounted.Fstab + " or the mount unit"
	case strings.HasPrefix(t.Name, bootline.Prefix):
		return "not on the command line of the next boot"
	case strings.HasPrefix(t.Name, optionfile.Prefix):
		return "not in the option file"
	case strings.HasPrefix(t.Name, sepolicy.Prefix):
		return "not in the local policy"
	}
	return "not in this kernel"
}
