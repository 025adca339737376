package ownfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"bulkhead/internal/linux/tunable/ownfile"
)

// Each text that somebody wrote into a file is kept, the same one once.
func TestEachEditIsKept(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "own.conf")
	for _, edited := range []string{"first", "second", "second", "third", "first"} {
		if err := os.WriteFile(at, []byte(edited), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ownfile.Write(at, "ours", false); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"own.conf.edited": "first", "own.conf.edited.2": "second", "own.conf.edited.3": "third",
		"own.conf": ownfile.Text("ours"),
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"own.conf", "own.conf.edited", "own.conf.edited.2", "own.conf.edited.3"}
	if !slices.Equal(names, want) {
		t.Errorf("there are %q", names)
	}
}

// What somebody who was killed left, of the file and of a directory made for it, goes; a directory with files stays.
func TestTidy(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "db.service.d", "90.conf")
	for _, emptied := range []bool{true, false} {
		if err := os.Mkdir(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at+".tmp", []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		if !ownfile.Left(at, emptied) {
			t.Error("it is not seen")
		}
		if err := ownfile.Write(at, "", emptied); err != nil || ownfile.Left(at, emptied) {
			t.Errorf("it is left: %v", err)
		}
		if _, err := os.Stat(filepath.Dir(at)); os.IsNotExist(err) != emptied {
			t.Errorf("the directory, emptied %t: %v", emptied, err)
		}
	}
	if err := ownfile.Write(at, "ours", true); err != nil {
		t.Fatal(err)
	}
	if err := ownfile.Tidy(at, true); err != nil || ownfile.Left(at, true) {
		t.Errorf("beside a file that is whole: %v", err)
	}
	if _, err := os.Stat(at); err != nil {
		t.Error(err)
	}
}

// All may read a file, as an engine must at its start, whatever the umask is; it belongs to the owner of its directory.
func TestOfItsDirectory(t *testing.T) {
	owners := []int{os.Geteuid()}
	if owners[0] == 0 {
		owners = append(owners, 12345)
	}
	for _, owner := range owners {
		dir, group := t.TempDir(), os.Getegid()
		if owner != os.Geteuid() {
			group = 54321
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(dir, owner, 54321); err != nil {
				t.Fatal(err)
			}
		}
		at := filepath.Join(dir, "own.conf")
		mask := syscall.Umask(0o077)
		err := ownfile.Write(at, "ours\n", false)
		syscall.Umask(mask)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(at)
		if err != nil {
			t.Fatal(err)
		}
		if is := info.Sys().(*syscall.Stat_t); info.Mode() != 0o644 || int(is.Uid) != owner || int(is.Gid) != group {
			t.Errorf("it has mode %v and owner %d:%d, want 0644 and %d:%d", info.Mode(), is.Uid, is.Gid, owner, group)
		}
	}
}

// A link to /dev/null under the name of a file is set aside and comes back; a FIFO is set aside, and waited for by
// nobody.
func TestForeignIsNoFile(t *testing.T) {
	dir := t.TempDir()
	link, pipe := filepath.Join(dir, "link.conf"), filepath.Join(dir, "pipe.conf")
	if err := errors.Join(os.Symlink(os.DevNull, link), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{link, pipe} {
		if err := ownfile.Write(at, "ours\n", false); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Lstat(pipe + ownfile.Edited); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("the FIFO: %v, %v", info, err)
	}
	if err := ownfile.Write(link, ownfile.Foreign(""), false); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(link); to != os.DevNull {
		t.Errorf("it leads to %q, %v", to, err)
	}
	if _, err := os.Lstat(link + ownfile.Edited); !os.IsNotExist(err) {
		t.Errorf("a copy is left: %v", err)
	}
}

// A text is given back as it was, also one that is no UTF-8, which the journal would not keep.
func TestForeign(t *testing.T) {
	for _, text := range []string{"", "a = 1\n", "# f\xfcr\n", "\x00base64\nYQ=="} {
		value := ownfile.Foreign(text)
		if !strings.HasPrefix(value, ownfile.AsLeft) || !utf8.ValidString(value) || ownfile.Text(value) != text {
			t.Errorf("%q: %q gives %q", text, value, ownfile.Text(value))
		}
	}
}

// What somebody else wrote comes back with its mode and its owner, and with no copy left; where nobody kept it,
// readable for all. A FIFO under the name of a kept file is waited for by nobody.
func TestForeignComesBack(t *testing.T) {
	const theirs = "theirs\n"
	for _, tt := range []struct {
		name string
		mode os.FileMode
		lose bool // the kept file is taken away meanwhile
	}{{"secret", 0o600, false}, {"for its group", 0o640, false}, {"nobody kept it", 0o644, true}} {
		t.Run(tt.name, func(t *testing.T) {
			dir, owner := t.TempDir(), os.Geteuid()
			at := filepath.Join(dir, "own.conf")
			if err := os.WriteFile(at, []byte(theirs), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(at+".edited", 0o600); err != nil {
				t.Fatal(err)
			}
			if owner == 0 && !tt.lose {
				owner = 12345
				if err := os.Chown(at, owner, 54321); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(at, tt.mode); err != nil {
				t.Fatal(err)
			}
			for _, body := range []string{"ours\n", "ours, too\n"} {
				if err := ownfile.Write(at, body, false); err != nil {
					t.Fatal(err)
				}
			}
			kept := at + ".edited.2"
			if text, err := os.ReadFile(kept); err != nil || string(text) != theirs {
				t.Fatalf("kept: %q, %v", text, err)
			}
			if tt.lose {
				if err := os.Remove(kept); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := ownfile.Write(at, ownfile.AsLeft+theirs, false); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(at)
			info, statErr := os.Stat(at)
			if err != nil || statErr != nil || string(text) != theirs {
				t.Fatalf("it is %q, %v, %v", text, err, statErr)
			}
			if is := info.Sys().(*syscall.Stat_t); info.Mode() != tt.mode || int(is.Uid) != owner {
				t.Errorf("it has mode %v and owner %d, want %v and %d", info.Mode(), is.Uid, tt.mode, owner)
			}
			if _, err := os.Lstat(kept); !os.IsNotExist(err) {
				t.Errorf("a copy is left: %v", err)
			}
		})
	}
}
