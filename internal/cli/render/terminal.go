package render

import (
	"bytes"
	"io"

	"bulkhead/internal/host"
)

// Printable gives a writer for people: what others chose, such as the name of a process, cannot steer the terminal.
// Line breaks and tabs pass; see host.Printable for the rest. Each Write must end between two characters, as those of
// package fmt do.
func Printable(w io.Writer) io.Writer { return printable{w} }

type printable struct{ to io.Writer }

func (w printable) Write(p []byte) (int, error) {
	var clean bytes.Buffer
	clean.Grow(len(p))
	rest := p
	for {
		at := bytes.IndexAny(rest, "\n\t")
		if at < 0 {
			clean.WriteString(host.Printable(string(rest)))
			break
		}
		clean.WriteString(host.Printable(string(rest[:at])))
		clean.WriteByte(rest[at])
		rest = rest[at+1:]
	}
	if _, err := w.to.Write(clean.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}
