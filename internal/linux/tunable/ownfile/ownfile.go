// Package ownfile reads and writes the files of configuration that are bulkhead's own: a heading with a sum tells
// whether somebody edited one since. An edited file is kept beside the new one, under its name with Edited added, and
// ".2" and so on where a different text is there already. The programs that these files are for read none of the kept
// ones. An undo that gives such a text back moves the kept file into its place, with its mode and owner.
package ownfile

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"bulkhead/internal/atomicfile"
)

const heading = "# Written by bulkhead, which takes it away again (bulkhead tune rollback). Write your own settings " +
	"into\n# a file of a later name. Sum of what follows: "

// Edited is added to the name of a file that somebody edited.
const Edited = ".edited"

// AsLeft begins the value of a file that is not as bulkhead wrote it.
const AsLeft = "# not as bulkhead wrote it:\n"

// coded follows it where a text is in base64: the journal keeps UTF-8 alone.
const coded = "\x00base64\n"

// Foreign is the value of a file with a text of somebody else's.
func Foreign(text string) string {
	if utf8.ValidString(text) && !strings.HasPrefix(text, coded) {
		return AsLeft + text
	}
	return AsLeft + coded + base64.StdEncoding.EncodeToString([]byte(text))
}

// foreignText is the inverse of Foreign; it says no for a value that is none.
func foreignText(value string) (text string, foreign bool) {
	text, foreign = strings.CutPrefix(value, AsLeft)
	if code, is := strings.CutPrefix(text, coded); is {
		if bytes, err := base64.StdEncoding.DecodeString(code); err == nil {
			return string(bytes), foreign
		}
	}
	return text, foreign
}

// Text is a file with a body. A body that is of Foreign is a text of somebody else's, which is given back.
func Text(body string) string {
	if text, foreign := foreignText(body); foreign {
		return text
	}
	return heading + sum(body) + "\n" + body
}

// Body is the inverse of Text; it says no for what Text did not give.
func Body(text string) (body string, ours bool) {
	rest, ok := strings.CutPrefix(text, heading)
	said, body, ok2 := strings.Cut(rest, "\n")
	return body, ok && ok2 && said == sum(body)
}

func sum(body string) string {
	s := sha256.Sum256([]byte(body))
	return hex.EncodeToString(s[:8])
}

// Write has a file hold a body, or takes it away (""). All may read it, whatever the umask is, and it belongs to the
// owner of its directory: of one in the data directory of a database that is its account, which copies and replaces all
// files there (pg_rewind(1) fails at one that it cannot write). It makes the directory; with it goes one that is empty
// then, where emptied is set. The path is that on this machine.
func Write(at, body string, emptied bool) error {
	if err := Tidy(at, emptied && body == ""); err != nil {
		return err
	}
	there, err := setAside(at, body)
	if err != nil || there {
		return err
	}
	dir := filepath.Dir(at)
	if body == "" {
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if emptied && os.Remove(dir) == nil { // a file of somebody else's keeps it
			dir = filepath.Dir(dir)
		}
		return atomicfile.SyncDir(atomicfile.OS{}, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as distributions have it
		return err
	}
	if back, err := giveBack(at, body); err != nil || back {
		return err
	}
	owner, err := OwnerOf(dir)
	if err == nil {
		if int(owner.Uid) == os.Geteuid() { // the agent's sandbox forbids chown(2), also of the group
			owner.Gid = uint32(os.Getegid()) //nolint:gosec // a group is no larger
		}
		err = put(at, at+unfinished, Text(body), 0o644, owner)
	}
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(dir))
}

// setAside keeps what somebody edited under another name, where a body is to come into its place. It says whether the
// file is as it is to be already.
func setAside(at, body string) (there bool, err error) {
	text, err := read(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return body == "", nil
	case err != nil:
		return false, err
	case body == Foreign(string(text)):
		return true, nil
	}
	if _, ours := Body(string(text)); ours {
		return false, nil
	}
	if err := os.Rename(at, aside(at, string(text))); err != nil {
		return false, fmt.Errorf("keep what somebody edited: %w", err)
	}
	return false, nil
}

// giveBack moves the kept file with the text of a body into its place; it says no where there is none.
func giveBack(at, body string) (back bool, err error) {
	text, foreign := foreignText(body)
	if !foreign {
		return false, nil
	}
	name := aside(at, text)
	if !isKept(name, text) {
		return false, nil
	}
	if err := os.Rename(name, at); err != nil {
		return false, fmt.Errorf("give back what somebody edited: %w", err)
	}
	return true, atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(at))
}

// Left says whether somebody who was killed while he wrote a file left something: what was to become the file, or,
// where emptied is set, the directory that he made for it.
func Left(at string, emptied bool) bool {
	if _, err := os.Lstat(at + unfinished); err == nil {
		return true
	}
	entries, err := os.ReadDir(filepath.Dir(at))
	return emptied && err == nil && len(entries) == 0
}

// unfinished is added to the name of a file that is not whole yet.
const unfinished = ".tmp"

// Tidy takes that away.
func Tidy(at string, emptied bool) error {
	if err := os.Remove(at + unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if emptied {
		_ = os.Remove(filepath.Dir(at)) // one with files stays
	}
	return nil
}

// aside is the name under which an edited file is kept: the first that is free or holds the same text.
func aside(at, text string) string {
	name := at + Edited
	for n := 2; ; n++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) || isKept(name, text) {
			return name
		}
		name = fmt.Sprintf("%s%s.%d", at, Edited, n)
	}
}

// read reads a file whole. A FIFO has no text, and is waited for by nobody.
func read(at string) ([]byte, error) {
	f, err := os.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	return io.ReadAll(f)
}

// isKept says whether a regular file of one name holds a text, or, of an empty one, whether it is a link to /dev/null.
// It waits for nobody: the directory may belong to the account of a database.
func isKept(name, text string) bool {
	if to, err := os.Readlink(name); err == nil {
		return to == os.DevNull && text == ""
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(text)) {
		return false
	}
	if is, known := info.Sys().(*syscall.Stat_t); !known || is.Nlink != 1 {
		return false
	}
	got, err := io.ReadAll(io.LimitReader(f, int64(len(text))+1))
	return err == nil && string(got) == text
}
