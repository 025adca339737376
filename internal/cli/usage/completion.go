package usage

import (
	"io"

	"github.com/spf13/cobra"
)

// CompletionCommand prints scripts for shells to out.
func CompletionCommand(out io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "a script that completes verbs and flags in a shell",
		Example:   "  bulkhead completion bash > /etc/bash_completion.d/bulkhead",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      Exactly(1, "say for which shell: bash, zsh or fish"),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		switch root := c.Root(); args[0] {
		case "bash":
			return root.GenBashCompletionV2(out, true)
		case "zsh":
			return root.GenZshCompletion(out)
		case "fish":
			return root.GenFishCompletion(out, true)
		}
		return Errorf(c, "no completion for %q: it is bash, zsh or fish", args[0])
	}
	return c
}
