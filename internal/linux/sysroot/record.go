package sysroot

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Entries of a captured host that are no plain text begin with one of these. What follows
// CapturedLink is the target of a symbolic link; what follows CapturedBytes, up to the newline, is
// the content with \0, \n and \\ written out.
const (
	CapturedLink  = "symlink: "
	CapturedBytes = "escaped: "
)

// recording is what was read of a host, in the form of the archive. A nil recording records nothing.
type recording struct {
	mu    sync.Mutex
	files map[string]string // by path without the leading "/"
}

func (r *recording) file(name string, data []byte) {
	if r == nil {
		return
	}
	if path.Base(name) == "cmdline" {
		data = maskSecrets(data)
	}
	text := string(data)
	if !plainText(text) {
		text = CapturedBytes + escapeBytes.Replace(text) + "\n"
	}
	r.put(name, text)
}

func (r *recording) link(name, target string) {
	if r != nil {
		r.put(name, CapturedLink+target+"\n")
	}
}

// dir records that a directory has these names; what is in them is put in place when it is read. Of
// /proc only the processes count, and those are there by their files.
func (r *recording) dir(name string, entries []string) {
	if r == nil || name == "/proc" {
		return
	}
	for _, entry := range entries {
		r.entry(path.Join(name, entry), true)
	}
}

// entry records that something of that name exists, if no more is known of it. A directory has a
// name that ends with a slash.
func (r *recording) entry(name string, dir bool) {
	if r == nil {
		return
	}
	if dir {
		name += "/"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	name = strings.TrimPrefix(name, "/")
	if _, known := r.files[name]; !known {
		r.files[name] = ""
	}
}

func (r *recording) put(name, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[strings.TrimPrefix(name, "/")] = text
}

// archive gives the entries by path as a txtar archive: a line "-- NAME --" before each. Directories
// of which more is known are left out.
func (r *recording) archive() string {
	var b strings.Builder
	b.WriteString("A captured host: what bulkhead reads of /proc and /sys.\n\n")
	names := slices.Sorted(maps.Keys(r.files))
	for i, name := range names {
		_, isFile := r.files[strings.TrimSuffix(name, "/")]
		hasBelow := i+1 < len(names) && strings.HasPrefix(names[i+1], name)
		if strings.HasSuffix(name, "/") && (isFile || hasBelow) {
			continue
		}
		fmt.Fprintf(&b, "-- %s --\n%s", name, r.files[name])
	}
	return b.String()
}

var (
	escapeBytes = strings.NewReplacer("\\", `\\`, "\x00", `\0`, "\n", `\n`)
	// txtarMarker is a line that would begin the next entry.
	txtarMarker = regexp.MustCompile(`(?m)^-- .* --\s*$`)
)

// plainText says whether an archive can hold the text as it is.
func plainText(text string) bool {
	return text == "" || strings.HasSuffix(text, "\n") && !strings.ContainsAny(text, "\x00\r") &&
		!strings.HasPrefix(text, CapturedLink) && !strings.HasPrefix(text, CapturedBytes) &&
		!txtarMarker.MatchString(text)
}

var (
	secretName = `[\w.-]*(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[-_]?key|credential|masterauth|` +
		`requirepass)[\w.-]*`
	// secretArg is one whole argument; secretValue stands inside one, in a script or in JSON.
	secretArg   = regexp.MustCompile(`(?is)^(-{1,2}` + secretName + `=).+$`)
	secretValue = regexp.MustCompile(`(?i)(\b` + secretName + `["']?\s*[=:]\s*)(?:"[^"]*"|'[^']*'|[^\s"']+)`)
	secretNext  = regexp.MustCompile(`^(?:-[pa]|(?i:-{0,2}` + secretName + `))$`)
	secretURI   = regexp.MustCompile(`(://[^\s/:@]*:)[^\s/@]+@`)
	secretShort = regexp.MustCompile(`(?:^|\s)-p[^\s]+`)
	// mysqlProgram takes -p for a password; others, PostgreSQL's among them, for a port.
	mysqlProgram = regexp.MustCompile(`^(?:mysql|maria)`)
	portNumber   = regexp.MustCompile(`^\d{1,5}$`)
)

const mask = "***"

// maskSecrets masks what looks like a password in a command line: the value after a telling name, the
// word after it, the one in a URI, and what follows -p, unless that is the port of a program that is
// no client of MySQL's.
func maskSecrets(cmdline []byte) []byte {
	args := bytes.Split(cmdline, []byte{0})
	numbersToo := mysqlProgram.Match(programName(args))
	next := false
	for i, original := range args {
		arg := secretArg.ReplaceAll(original, []byte("${1}"+mask))
		arg = secretValue.ReplaceAll(arg, []byte("${1}"+mask))
		arg = secretURI.ReplaceAll(arg, []byte("${1}"+mask+"@"))
		arg = secretShort.ReplaceAllFunc(arg, func(found []byte) []byte {
			option, value, _ := bytes.Cut(found, []byte("-p"))
			if portNumber.Match(value) && !numbersToo {
				return found
			}
			return append(append(bytes.Clone(option), "-p"...), mask...)
		})
		if next && len(arg) > 0 && (numbersToo || !portNumber.Match(arg)) {
			arg = []byte(mask)
		}
		next = i > 0 && secretNext.Match(original)
		args[i] = arg
	}
	return bytes.Join(args, []byte{0})
}

func programName(args [][]byte) []byte { return args[0][bytes.LastIndexByte(args[0], '/')+1:] }
