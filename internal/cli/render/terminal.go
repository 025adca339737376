package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"bulkhead/internal/cli/screen"
	"bulkhead/internal/policy"
	"bulkhead/internal/terminal"
)

// Printf writes like fmt.Fprintf, with every argument that is text escaped by terminal.Printable: a line break in the
// name of a process, an argument, a file or a reason begins no line, a tab no column, and a direction mark turns
// nothing around. The format itself is ours and stays as it is. args is changed.
func Printf(out io.Writer, format string, args ...any) {
	escape(args)
	_, _ = fmt.Fprintf(out, format, args...)
}

// Println writes like fmt.Fprintln, with every argument that is text escaped as Printf does.
func Println(out io.Writer, args ...any) {
	escape(args)
	_, _ = fmt.Fprintln(out, args...)
}

// Error writes an error for people. Lines behind its first one, as of an error that another program's words end, are
// indented: none begins where a line of ours would.
func Error(out io.Writer, err error) {
	for i, line := range strings.Split(err.Error(), "\n") {
		if i == 0 {
			Println(out, "bulkhead:", line)
		} else {
			Println(out, " ", line)
		}
	}
}

// Problem writes what is wrong with a policy. The line of its source, and what points into it, stay as they are.
func Problem(out io.Writer, p policy.Problem) {
	source := out
	if w, ok := out.(*printable); ok {
		source = Printable(w.to, 0)
	}
	for line := range strings.Lines(p.String() + "\n") {
		if strings.HasPrefix(line, "    ") {
			_, _ = io.WriteString(source, line)
			continue
		}
		_, _ = io.WriteString(out, line)
	}
}

// escape makes arguments fit for package fmt, in place. Numbers stay what they are, also those with a text of their
// own: it is ours.
func escape(args []any) {
	for i, a := range args {
		v := reflect.ValueOf(a)
		text, says := a.(fmt.Stringer)
		err, fails := a.(error)
		switch {
		case fails:
			args[i] = terminal.Printable(err.Error())
		case v.IsValid() && (v.CanInt() || v.CanUint() || v.CanFloat()):
		case says:
			args[i] = terminal.Printable(text.String())
		case v.Kind() == reflect.String:
			args[i] = terminal.Printable(v.String())
		}
	}
}

// JSON writes an answer as JSON, indented. What does not print stands there as an escape such as \u202e, which programs
// read as the character that it is.
func JSON(out io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var clean strings.Builder
	clean.Grow(text.Len())
	for _, r := range text.String() {
		switch {
		case r < 0x7f || unicode.IsPrint(r): // the encoder has escaped the rest below 0x7f
			clean.WriteRune(r)
		default:
			for _, half := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&clean, `\u%04x`, half)
			}
		}
	}
	_, err := io.WriteString(out, clean.String())
	return err
}

// Printable gives a writer for people that escapes what Printf does, except for line breaks and tabs: it is for text of
// several lines, such as a policy. Each Write must end between two characters, as those of package fmt do. Lines longer
// than width columns go on in the next one, between two words and behind the line's own indent; 0 leaves them as they
// are. Several goroutines may write at once.
func Printable(w io.Writer, width int) io.Writer { return &printable{to: w, width: width} }

type printable struct {
	to    io.Writer
	width int
	mu    sync.Mutex
	line
}

// line is what stands in a line already.
type line struct {
	column, indent int  // all of it, and the blanks at its beginning
	text           bool // it has more than blanks
}

// Write implements io.Writer.
func (w *printable) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var clean bytes.Buffer
	clean.Grow(len(p))
	rest := p
	for {
		at := bytes.IndexAny(rest, "\n\t")
		if at < 0 {
			w.add(&clean, terminal.Printable(string(rest)))
			break
		}
		w.add(&clean, terminal.Printable(string(rest[:at])))
		clean.WriteByte(rest[at])
		w.column++
		if rest[at] == '\n' {
			w.line = line{}
		}
		rest = rest[at+1:]
	}
	if _, err := w.to.Write(clean.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// add appends a part of a line, word by word.
func (w *printable) add(to *bytes.Buffer, part string) {
	for part != "" {
		blanks := len(part) - len(strings.TrimLeft(part, " "))
		end := len(part)
		if i := strings.IndexByte(part[blanks:], ' '); i >= 0 {
			end = blanks + i
		}
		word, length := part[:end], utf8.RuneCountInString(part[:end])
		part = part[end:]
		switch {
		case !w.text && blanks == end:
			w.indent += blanks
		case !w.text:
			w.indent, w.text = w.indent+blanks, true
		case w.width > 0 && blanks > 0 && blanks < end && w.column+length > w.width:
			word, length = word[blanks:], length-blanks
			w.column = max(0, min(w.indent+2, w.width/2, w.width-length)) // a path stays whole, to be copied
			to.WriteString("\n" + strings.Repeat(" ", w.column))
		}
		to.WriteString(word)
		w.column += length
	}
}

// Width is how many columns a writer for people has: what the environment's COLUMNS says, else those of the terminal
// that it is; 0 where lines have no end, as in a file or a pipe.
func Width(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return max(n, narrowest)
	}
	if f, ok := w.(screen.Descriptor); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return max(n, narrowest)
		}
	}
	return 0
}

// Clear begins the screen anew of a terminal, to which out writes; elsewhere it writes a line with the time.
func Clear(out, terminal io.Writer) {
	if screen.Terminal(terminal) {
		_, _ = io.WriteString(terminal, "\x1b[H\x1b[2J")
		return
	}
	Printf(out, "\n--- %s\n", time.Now().Format(time.DateTime))
}

// narrowest is the fewest columns that answers are made for.
const narrowest = 40
