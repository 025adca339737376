package usage

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// HelpCommand is cobra's help, with an error for a verb that is not there.
func HelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "what a verb does and takes",
		Args:  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return Errorf(c.Root(), "unknown verb %q", strings.Join(args, " "))
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

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
