// Package usage checks command lines: arguments, flags for times, and errors that lead to a verb's help.
//
// Wrap is called on every command. The verbs take AtLeast and Exactly for their arguments and Errorf for what only they
// can check; each such error is an *Error, and exit code 2.
package usage

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
)

// Template is cobra's, in the words of this program.
const Template = `Usage:
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

// Error is a bad command line: exit code 2.
type Error struct {
	Command string
	Err     error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// HintOf is what helps with a bad command line; "" for any other error.
func HintOf(err error) string {
	var wrong *Error
	if !errors.As(err, &wrong) {
		return ""
	}
	return fmt.Sprintf("`%s --help` shows how", wrong.Command)
}

// AsksForJSON says whether a bad command line asks for JSON: behind the flag that was wrong nothing was read.
func AsksForJSON(args []string, err error) bool {
	if HintOf(err) == "" {
		return false
	}
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json")
}

// Errorf gives the error of a command line that a verb cannot take.
func Errorf(c *cobra.Command, format string, args ...any) error {
	return &Error{Command: c.CommandPath(), Err: fmt.Errorf(format, args...)}
}

// ProcessID reads the id of a process.
func ProcessID(c *cobra.Command, text string) (int, error) {
	pid, err := strconv.Atoi(text)
	if err != nil || pid < 1 {
		return 0, Errorf(c, "%q is not a process id", text)
	}
	return pid, nil
}

// Wrap makes wrong arguments a usage error, and a name that is no verb a wrong argument.
func Wrap(c *cobra.Command) {
	check := c.Args
	switch {
	case c.HasSubCommands() && check == nil: // one that says itself what it takes does something by itself, too
		check = KnownVerb
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	case check == nil:
		check = NoArguments
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &Error{Command: c.CommandPath(), Err: err}
		}
		return nil
	}
}

// KnownVerb refuses an argument, as the name of a verb that is not there.
func KnownVerb(c *cobra.Command, args []string) error {
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

// NoArguments refuses any argument.
func NoArguments(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%q is one word too many", args[0])
}

// AtMostOne refuses a second argument.
func AtMostOne(c *cobra.Command, args []string) error {
	return NoArguments(c, args[min(1, len(args)):])
}

// AtLeast asks for n arguments and says, when one is missing, what it is.
func AtLeast(n int, missing string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return errors.New(missing)
		}
		return nil
	}
}

// Exactly asks for n arguments.
func Exactly(n int, missing string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n {
			return errors.New(missing)
		}
		return NoArguments(c, args[n:])
	}
}
