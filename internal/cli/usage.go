package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// usageTemplate is cobra's, in the words of this program.
const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} VERB [flags]{{else}}{{.UseLine}}{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}
{{- end}}
{{- if .HasAvailableSubCommands}}{{$verbs := .Commands}}
{{- if .Groups}}{{range $group := .Groups}}

{{.Title}}{{range $verbs}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}
{{- else}}

Verbs:{{range $verbs}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}
{{- end}}
{{- end}}
{{- if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{- end}}
{{- if .HasAvailableInheritedFlags}}

Flags of every verb:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}
{{- end}}
{{- if .HasAvailableSubCommands}}

` + "`{{.CommandPath}} VERB --help` says more about one of them." + `
{{- end}}
`

// usageError is a bad command line: exit code 2.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

// wrapArgs makes wrong arguments a usage error, and a name that is no verb a wrong argument.
func wrapArgs(c *cobra.Command) {
	check := c.Args
	switch {
	case c.HasSubCommands() && check == nil: // one that says itself what it takes does something by itself, too
		check = knownVerb
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	case check == nil:
		check = noArguments
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &usageError{command: c.CommandPath(), err: err}
		}
		return nil
	}
}

func knownVerb(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown verb %q", args[0])
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		text += fmt.Sprintf("; did you mean %q?", near[0])
	}
	return errors.New(text)
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%q is one word too many", args[0])
}

// atLeast asks for n arguments and says, when one is missing, what it is.
func atLeast(n int, missing string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return errors.New(missing)
		}
		return nil
	}
}

// exactly asks for n arguments.
func exactly(n int, missing string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n {
			return errors.New(missing)
		}
		return noArguments(c, args[n:])
	}
}
