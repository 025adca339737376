package usage

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/policy"
)

// Complete has the shell's completion offer what stands at a place of a command line: groups, and for set and unset the
// keys of limits behind a group. groups names those there are; it is asked only when the shell asks. A file is offered
// where a verb reads files, and nowhere else.
func Complete(root *cobra.Command, groups func(context.Context) []string) {
	for _, c := range root.Commands() {
		most, takes := map[string]int{"status": -1, "verify": -1, "release": -1, "run": 1, "move": 1, "freeze": 1,
			"thaw": 1, "suspects": 1, "set": -1, "unset": -1}[c.Name()]
		switch {
		case c.Name() == "set" || c.Name() == "unset":
			c.ValidArgsFunction = func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
				found := keysOf(groups(c.Context()), word, c.Name() == "set")
				return found, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
			}
		case takes:
			c.ValidArgsFunction = func(c *cobra.Command, given []string, word string) (
				[]string, cobra.ShellCompDirective,
			) {
				switch {
				case c.Name() == "run" && len(given) > 0: // the command
					return nil, cobra.ShellCompDirectiveDefault
				case most >= 0 && len(given) >= most:
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				found := slices.DeleteFunc(groups(c.Context()), func(g string) bool {
					return !strings.HasPrefix(g, word) || slices.Contains(given, g)
				})
				return found, cobra.ShellCompDirectiveNoFileComp
			}
		case !c.HasSubCommands() && len(c.ValidArgs) == 0:
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
}

// keysOf are the words that "GROUP:KEY" can go on to: groups up to a colon, keys of a limit behind it.
func keysOf(groups []string, word string, assign bool) (found []string) {
	group, _, behind := strings.Cut(word, ":")
	for _, g := range groups {
		if !behind && strings.HasPrefix(g, word) {
			found = append(found, g+":")
		}
	}
	for _, k := range policy.Keys() {
		text := group + ":" + string(k)
		if assign {
			text += "="
		}
		if behind && strings.HasPrefix(text, word) {
			found = append(found, text)
		}
	}
	return found
}
