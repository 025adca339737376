// Package testdoc reads the code blocks of README and docs, for the tests that run them.
//
// A comment in a document says how a block is tested, where it does not show:
//
//	<!-- run: TestWalk TestDebPackage -->   the tests that run the blocks from here to the next heading
//	<!-- illustration -->                   the next block is run by nobody
//
// A block under neither is one that test/docs can judge by itself: a policy, or commands of bulkhead, make and go whose
// verbs, flags and targets it looks up.
package testdoc

import (
	"regexp"
	"slices"
	"strings"
)

// Block is what stands between two fences.
type Block struct {
	Line         int    // of its first fence
	Heading      string // the one that it stands under
	Info         string // what follows the first fence: a language and, at times, a file's name
	Text         string // without the indentation of its fence
	Run          []string
	Illustration bool
}

var mark = regexp.MustCompile(`^<!-- (run: ([\w ]+)|illustration) -->$`)

// Blocks gives those of a document, in order.
func Blocks(document string) []Block {
	var all []Block
	var b Block
	inside, indent := false, ""
	var text strings.Builder
	for i, line := range strings.Split(document, "\n") {
		bare := strings.TrimSpace(line)
		found := mark.FindStringSubmatch(bare)
		switch {
		case inside && bare == "```":
			b.Text, inside = text.String(), false
			all = append(all, b)
			b.Illustration = false
		case inside:
			text.WriteString(strings.TrimPrefix(line, indent) + "\n")
		case strings.HasPrefix(bare, "```"):
			text.Reset()
			b.Line, b.Info, inside = i+1, strings.TrimPrefix(bare, "```"), true
			indent = line[:len(line)-len(strings.TrimLeft(line, " "))]
		case strings.HasPrefix(line, "#"):
			b = Block{Heading: strings.TrimLeft(line, "# ")}
		case found != nil && found[2] != "":
			b.Run = strings.Fields(found[2])
		case found != nil:
			b.Illustration = true
		}
	}
	return all
}

// RunBy gives the blocks of a document that a test is said to run.
func RunBy(document, test string) []Block {
	return slices.DeleteFunc(Blocks(document), func(b Block) bool {
		return b.Illustration || !slices.Contains(b.Run, test)
	})
}

// Commands are the lines of a block, without their remarks.
func (b Block) Commands() []string {
	var all []string
	for line := range strings.Lines(b.Text) {
		command, _, _ := strings.Cut(strings.TrimRight(line, "\n"), "  #")
		if command = strings.TrimSpace(command); command != "" && command[0] != '#' {
			all = append(all, command)
		}
	}
	return all
}
