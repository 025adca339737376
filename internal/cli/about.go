package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/policy/parse"
)

func schemaCmd(to *output) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "the JSON Schema of the policy file",
		RunE: func(*cobra.Command, []string) error {
			text, err := parse.Schema()
			if err != nil {
				return err
			}
			_, err = to.stdout.Write(text)
			return err
		},
	}
}

// versionText is the version with what this program was built by and for.
func versionText() string { return Version + " (" + runtime.Version() + ", " + runtime.GOARCH + ")" }

func versionCmd(to *output) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "the version of this program",
		RunE: func(*cobra.Command, []string) error {
			if to.json {
				return to.printJSON(map[string]string{"version": Version, "go": runtime.Version(),
					"arch": runtime.GOARCH})
			}
			render.Printf(to.out, "bulkhead %s\n", versionText())
			return nil
		},
	}
}
