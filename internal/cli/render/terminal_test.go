package render

import (
	"bytes"
	"fmt"
	"io"
	"testing"
)

func TestPrintable(t *testing.T) {
	var out bytes.Buffer
	w := Printable(&out, 0)
	n, err := fmt.Fprintf(w, "process 7 (%s):\tüser\n\n%s\n", "a\x1b[2Jb\r", "\u202eevil\x00\xff")
	if want := "process 7 (a\\x1b[2Jb\\x0d):\tüser\n\n\\u202eevil\\x00\\xff\n"; err != nil || out.String() != want {
		t.Errorf("%q, %v; want %q", out.String(), err, want)
	}
	if want := len("process 7 (a\x1b[2Jb\r):\tüser\n\n\u202eevil\x00\xff\n"); n != want {
		t.Errorf("it says that it took %d bytes, want %d", n, want)
	}
}

// Long lines are wrapped between words and behind their indent, whatever the parts in which they are written; nothing
// of them is lost.
func TestWrapped(t *testing.T) {
	var out bytes.Buffer
	w := Printable(&out, 40)
	for _, part := range []string{"  memory: anonymous 3 GiB,", " file 1 MiB", ", shared 0 B, huge pages -\n",
		"short\n", "note: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b\n"} {
		_, _ = io.WriteString(w, part)
	}
	if want := "  memory: anonymous 3 GiB, file 1 MiB,\n    shared 0 B, huge pages -\nshort\n" +
		"note:\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n  b\n"; out.String() != want {
		t.Errorf("%s\nwant:\n%s", out.String(), want)
	}
}

// A table keeps to the width of what it is written to: cells take several lines.
func TestTableFits(t *testing.T) {
	var out bytes.Buffer
	w := newTable(Printable(&out, 44), "group", "file", "why")
	Printf(w, "%s\t%s\t%s\n", "a", "blkio.throttle.write_iops_device", "the kernel holds direct writes only")
	Printf(w, "%s\t%s\t%s\n", "b", "pids.max", "-")
	w.flush()
	want := "" +
		"GROUP  FILE               WHY\n" +
		"a      blkio.throttle.    the kernel holds\n" +
		"       write_iops_device  direct writes only\n" +
		"b      pids.max           -\n\n"
	if out.String() != want {
		t.Errorf("%s\nwant:\n%s", out.String(), want)
	}
}

func TestWidth(t *testing.T) {
	for columns, want := range map[string]int{"": 0, "80": 80, "x": 0, "-1": 0, "3": narrowest} {
		t.Setenv("COLUMNS", columns)
		if got := Width(&bytes.Buffer{}); got != want {
			t.Errorf("COLUMNS=%q: %d, want %d", columns, got, want)
		}
	}
}
