package zfslayout

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An option file that was edited since loses the one line alone.
func TestOptionFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "my.cnf")
	text := "[mysqld]\ndatadir=/d\nport=1"
	for _, e := range []Edit{{File: file, Line: 2, New: "x = 1"}, {File: file, Line: 3, New: "x = 1"},
		{File: file, Line: 3, Old: "port", New: "port = 2"}} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		o, err := original(e, "/d")
		if err == nil {
			err = errors.Join(o.write(), o.write())
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); !strings.Contains(string(got), e.New+"\n") || strings.Count(string(got),
			"\n") > 4 {
			t.Errorf("%+v:\n%s", e, got)
		}
		if note, err := o.undo(); err != nil || note != "" || there(file+Suffix) {
			t.Errorf("%q, %v", note, err)
		}
		if got, _ := os.ReadFile(file); string(got) != text {
			t.Errorf("%+v:\n%s", e, got)
		}
		if err := errors.Join(o.write(), os.WriteFile(file, append(o.New, "more=1\n"...), 0o644)); err != nil {
			t.Fatal(err)
		}
		if note, err := o.undo(); err != nil || note == "" || !there(file+Suffix) {
			t.Errorf("%q, %v", note, err)
		}
		if got, _ := os.ReadFile(file); strings.TrimSuffix(strings.ReplaceAll(string(got), "more=1\n", ""),
			"\n") != text {
			t.Errorf("%+v:\n%s", e, got)
		}
		if err := os.Remove(file + Suffix); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []Edit{{File: file, Line: 9, New: "x"}, {File: file, Line: 1, Old: "port", New: "x"}} {
		if _, err := edited([]byte(text), e); err == nil {
			t.Errorf("%+v", e)
		}
	}
}
