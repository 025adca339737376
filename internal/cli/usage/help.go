package usage

import (
	"cmp"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

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

// Help writes the help of a verb, in lines of a width; 0: as long as they are.
func Help(to io.Writer, width int) func(*cobra.Command, []string) {
	return func(c *cobra.Command, _ []string) {
		_, _ = io.WriteString(to, Fold(strings.TrimSpace(cmp.Or(c.Long, c.Short))+"\n\n"+c.UsageString(), width))
	}
}

// hang is what goes before the text of a list's line: the name of a verb or a flag, or the command of an example.
var hang = regexp.MustCompile(`^ +\S.*?  +|^ +`)

// Fold gives help the width of a terminal. Paragraphs are filled anew; a line that is indented goes on below its text,
// behind the name that it begins with. 0 leaves everything as it is.
func Fold(text string, width int) string {
	if width <= 0 {
		return text
	}
	var b strings.Builder
	var paragraph []string
	end := func() {
		fill(&b, "", strings.Join(paragraph, " "), width)
		paragraph = nil
	}
	for line := range strings.Lines(text) {
		switch line = strings.TrimRight(line, "\n"); {
		case line == "" || strings.HasPrefix(line, " "):
			end()
			at := len(hang.FindString(line))
			fill(&b, line[:at], line[at:], width)
			if line == "" {
				b.WriteByte('\n')
			}
		default:
			paragraph = append(paragraph, line)
		}
	}
	end()
	return b.String()
}

// fill writes a text in lines of a width, the first one behind a head and the others below what stands there.
func fill(b *strings.Builder, head, text string, width int) {
	if text == "" {
		return
	}
	b.WriteString(head)
	const deepest = 40 // columns: a head that is longer leaves no room
	indent := utf8.RuneCountInString(head)
	column, below := indent, strings.Repeat(" ", min(indent, deepest))
	for i, word := range strings.Split(text, " ") {
		length := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+length > width:
			b.WriteString("\n" + below)
			column = len(below)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += length
	}
	b.WriteByte('\n')
}
