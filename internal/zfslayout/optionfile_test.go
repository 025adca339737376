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

// A setting keeps the ends of its lines, and is known with the prefix that a server ignores.
func TestEditedLines(t *testing.T) {
	for _, tt := range []struct{ text, old, want string }{
		{"[mysqld]\r\nport=1\r\n", "", "[mysqld]\r\nport=1\r\nx = 1\r\n"},
		{"[mysqld]\r\nport=1\r\n", "port", "[mysqld]\r\nx = 1\r\n"},
		{"[mysqld]\nloose-a-b = 1\n", "a_b", "[mysqld]\nx = 1\n"},
	} {
		got, err := edited([]byte(tt.text), Edit{File: "f", Line: 2, Old: tt.old, New: "x = 1"})
		if err != nil || string(got) != tt.want {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// What is written goes to the file, and through no link that lies beside it.
func TestEditFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	file, victim := filepath.Join(dir, "my.cnf"), filepath.Join(dir, "victim")
	if err := errors.Join(os.WriteFile(file, []byte("[mysqld]\nport=1\n"), 0o640),
		os.WriteFile(victim, []byte("v"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".tmp", ".bulkhead-new", Suffix, Suffix + ".tmp", Suffix + ".bulkhead-new"} {
		if err := os.Symlink(victim, file+name); err != nil {
			t.Fatal(err)
		}
	}
	o, err := original(Edit{File: file, Line: 2, New: "x = 1"}, "/d")
	if err == nil {
		err = o.write()
	}
	if err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(victim)
	kept, _ := os.ReadFile(file + Suffix)
	now, _ := os.ReadFile(file)
	info, err := os.Lstat(file + Suffix)
	if err != nil || string(text) != "v" || string(kept) != string(o.Text) || string(now) != string(o.New) ||
		info.Mode() != 0o640 {
		t.Errorf("%v, %q, %q, %q, %v", err, text, kept, now, info.Mode())
	}
}

// A line that somebody else wrote anew stays, and that is said.
func TestUndoOfAnotherLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "my.cnf")
	if err := os.WriteFile(file, []byte("[mysqld]\nport=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := original(Edit{File: file, Line: 2, New: "x = 1"}, "/d")
	theirs := "[mysqld]\nport=1\nx=1\n"
	if err = errors.Join(err, o.write(), os.WriteFile(file, []byte(theirs), 0o600)); err != nil {
		t.Fatal(err)
	}
	note, err := o.undo()
	if text, _ := os.ReadFile(file); err != nil || !strings.Contains(note, "is not in it") || string(text) != theirs {
		t.Errorf("%q, %v, %q", note, err, text)
	}
}
