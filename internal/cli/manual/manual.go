// Package manual writes the manual pages: bulkhead(8), bulkhead-policy(5), and one for each verb, such as
// bulkhead-apply(8). They are made when bulkhead is installed or packaged, from what `--help` prints and from the
// schema of policies, so that there is one text of each.
//
//	bulkhead manual DIR
//
// Pages are in man(7), which man-db, mandoc and their ancestors read. cobra's own generator is not used: it needs a
// converter of Markdown in the program, and leaves what `mandoc -Tlint` complains about.
package manual

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/usage"
	"bulkhead/internal/policy/parse"
)

// Command is the hidden verb that writes the pages into a directory.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:    "manual DIR",
		Short:  "the manual pages, into a directory",
		Hidden: true,
		Args:   usage.Exactly(1, "say into which directory"),
		RunE: func(c *cobra.Command, args []string) error {
			day, err := date()
			if err != nil {
				return err
			}
			pages, err := Pages(c.Root(), day)
			if err != nil {
				return err
			}
			for name, text := range pages {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// Pages gives the pages by the names of their files, such as bulkhead-apply.8, with a date in their foot. Hidden verbs
// have none.
func Pages(root *cobra.Command, day time.Time) (map[string]string, error) {
	root.InitDefaultHelpFlag()
	version, _, _ := strings.Cut(root.Version, " ")
	foot := foot{day.UTC().Format(time.DateOnly), root.Name() + " " + version}
	pages := map[string]string{name(root) + ".8": verbPage(root, foot)}
	var below func(*cobra.Command)
	below = func(c *cobra.Command) {
		for _, verb := range c.Commands() {
			if verb.IsAvailableCommand() {
				verb.InitDefaultHelpFlag()
				pages[name(verb)+".8"] = verbPage(verb, foot)
				below(verb)
			}
		}
	}
	below(root)
	schema, err := parse.Schema()
	if err != nil {
		return nil, err
	}
	pages["bulkhead-policy.5"], err = policyPage(schema, root.PersistentFlags().Lookup("policy").DefValue, foot)
	return pages, err
}

// date is the day that pages are of: that of SOURCE_DATE_EPOCH, by which builds that can be repeated agree on the time,
// else today.
func date() (time.Time, error) {
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q, not a number of seconds since 1970", epoch)
		}
		return time.Unix(seconds, 0), nil
	}
	return time.Now(), nil
}
