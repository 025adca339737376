package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
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

func completionCmd(to *output) *cobra.Command {
	c := &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "a script that completes verbs and flags in a shell",
		Example:   "  bulkhead completion bash > /etc/bash_completion.d/bulkhead",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      usage.Exactly(1, "say for which shell: bash, zsh or fish"),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		switch root := c.Root(); args[0] {
		case "bash":
			return root.GenBashCompletionV2(to.stdout, true)
		case "zsh":
			return root.GenZshCompletion(to.stdout)
		case "fish":
			return root.GenFishCompletion(to.stdout, true)
		}
		return usage.Errorf(c, "no completion for %q: it is bash, zsh or fish", args[0])
	}
	return c
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
