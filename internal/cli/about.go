package cli

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
)

// commit is the one that this program was built from, as make or the toolchain has noted it; "" where neither has.
func commit() string {
	noted := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				noted = s.Value
			}
		}
	}
	return cmp.Or(Commit, noted)
}

// versionText is the version with what this program was built from, by and for.
func versionText() string {
	const short = 12 // digits tell one commit from all others, and leave the line short enough
	from := commit()
	if from != "" {
		from = ", commit " + from[:min(short, len(from))]
	}
	return Version + " (" + runtime.Version() + ", " + runtime.GOARCH + from + ")"
}

func versionCmd(to *output) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "the version of this program, and what it was built from",
		RunE: func(*cobra.Command, []string) error {
			if to.json {
				return to.printJSON(map[string]string{"version": Version, "commit": commit(),
					"go": runtime.Version(), "arch": runtime.GOARCH})
			}
			render.Printf(to.out, "bulkhead %s\n", versionText())
			return nil
		},
	}
}
