package render

import (
	"bytes"
	"fmt"
	"testing"
)

func TestPrintable(t *testing.T) {
	var out bytes.Buffer
	w := printable{&out}
	n, err := fmt.Fprintf(w, "process 7 (%s):\tüser\n\n%s\n", "a\x1b[2Jb\r", "\u202eevil\x00\xff")
	if want := "process 7 (a\\x1b[2Jb\\x0d):\tüser\n\n\\u202eevil\\x00\\xff\n"; err != nil || out.String() != want {
		t.Errorf("%q, %v; want %q", out.String(), err, want)
	}
	if want := len("process 7 (a\x1b[2Jb\r):\tüser\n\n\u202eevil\x00\xff\n"); n != want {
		t.Errorf("it says that it took %d bytes, want %d", n, want)
	}
}
