package avc

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// head is what stands before the message of a record.
type head struct {
	kind, node string
	when       time.Time
	serial     uint64
	// key is the same for all records of an event.
	key string
	// interpreted says that `ausearch -i` printed it: nothing is quoted, and blanks stand in values.
	interpreted bool
	user        bool
}

// headOf reads "node=h type=AVC msg=audit(1527792830.989:136): ", "kernel: [1.2] audit: type=1400 audit(1.2:3): ", and
// what the journal prints, "Nov 25 10:00:00 host audit[77]: AVC ".
func headOf(text string, now time.Time) head {
	h := head{node: valueOf(text, "node="), kind: valueOf(text, "type=")}
	h.user = strings.HasPrefix(h.kind, "USER_") || strings.Contains(text, "USER_AVC")
	before, stamp, found := strings.Cut(text, "audit(")
	if found {
		stamp, _, _ = strings.Cut(stamp, ")")
		at := strings.LastIndexByte(stamp, ':')
		if at < 0 {
			return h
		}
		h.serial, _ = strconv.ParseUint(stamp[at+1:], 10, 64)
		h.when, h.interpreted = stampOf(stamp[:at])
		h.key = h.node + " " + stamp
		return h
	}
	h.when = prefixOf(before, now)
	return h
}

// stampOf reads the time of a record: seconds since 1970, or a date as ausearch -i has it in some locale's order.
func stampOf(text string) (when time.Time, interpreted bool) {
	seconds, part, _ := strings.Cut(text, ".")
	if s, err := strconv.ParseInt(seconds, 10, 64); err == nil && !strings.ContainsAny(part, ".: ") {
		ms, _ := strconv.ParseInt((part + "000")[:3], 10, 64)
		return time.Unix(s, ms*int64(time.Millisecond)).UTC(), false
	}
	for _, layout := range []string{"01/02/2006 15:04:05", "02.01.2006 15:04:05", "01/02/06 15:04:05",
		"2006-01-02 15:04:05"} {
		// ausearch prints the time of the place it runs at; this program runs there, too.
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, true
		}
	}
	return time.Time{}, true
}

// prefixOf reads the date at the beginning of a line of the journal or of syslog. One without a year is the last such
// day before now.
func prefixOf(text string, now time.Time) time.Time {
	if word, _, ok := strings.Cut(text, " "); ok {
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05-0700"} {
			if t, err := time.Parse(layout, word); err == nil {
				return t
			}
		}
	}
	if len(text) < len(time.Stamp) {
		return time.Time{}
	}
	t, err := time.ParseInLocation(time.Stamp, text[:len(time.Stamp)], time.Local)
	if err != nil || now.IsZero() {
		return time.Time{}
	}
	t = t.AddDate(now.Year(), 0, 0)
	if t.After(now.AddDate(0, 0, 1)) {
		t = t.AddDate(-1, 0, 0)
	}
	return t
}

// valueOf is the word behind a key.
func valueOf(text, key string) string {
	_, rest, found := strings.Cut(text, key)
	if !found {
		return ""
	}
	if at := strings.IndexAny(rest, " \t\x1d"); at >= 0 {
		rest = rest[:at]
	}
	return rest
}

// denialOf reads what stands behind "avc:".
func denialOf(buf fields, body string, interpreted bool) (Denial, error) {
	d := Denial{Permissive: Unknown}
	_, rest, opened := strings.Cut(body, "{")
	inside, rest, closed := strings.Cut(rest, "}")
	if !opened || !closed {
		return d, fmt.Errorf("no permissions in braces")
	}
	d.Permissions = strings.Fields(inside)
	if len(d.Permissions) == 0 {
		return d, fmt.Errorf("no permissions in braces")
	}
	for _, p := range d.Permissions {
		if !name(p) {
			return d, fmt.Errorf("the policy that was loaded has no name for permission %q", p)
		}
	}
	f := fieldsOf(buf, rest, interpreted)
	var ok bool
	if d.Source, ok = ParseContext(f.last("scontext")); !ok || !name(d.Source.Type) {
		return d, fmt.Errorf("no context of the source")
	}
	if d.Target, ok = ParseContext(f.last("tcontext")); !ok || !name(d.Target.Type) {
		return d, fmt.Errorf("no context of the target")
	}
	if d.Class = f.last("tclass"); !name(d.Class) {
		return d, fmt.Errorf("the policy that was loaded has no name for class %q", d.Class)
	}
	d.PID, d.Comm, d.Exe = number(f.of("pid")), f.of("comm"), f.of("exe")
	d.Name, d.inode = f.of("name"), f.of("ino")
	if path := f.of("path"); strings.HasPrefix(path, "/") {
		d.Path = path
	}
	d.Port, d.Protocol = portOf(d.Class, f)
	switch f.last("permissive") {
	case "1":
		d.Permissive = Yes
	case "0":
		d.Permissive = No
	}
	return d, nil
}

// name says whether a word can stand in a rule.
func name(word string) bool {
	if word == "" || word[0] >= '0' && word[0] <= '9' {
		return false
	}
	for i := range len(word) {
		if c := word[i]; c != '_' && c != '-' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') &&
			(c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// portOf is the port that a socket was bound or connected to.
func portOf(class string, f fields) (int, string) {
	protocol, is := strings.CutSuffix(class, "_socket")
	if !is || f.of("src") == "" && f.of("dest") == "" {
		return 0, ""
	}
	if protocol != "tcp" && protocol != "udp" && protocol != "sctp" && protocol != "dccp" {
		protocol = ""
	}
	if port := number(f.of("dest")); port > 0 {
		return port, protocol
	}
	return number(f.of("src")), protocol
}

// encoded are the fields that the kernel writes in hexadecimal digits, without quotes, when they have blanks, quotes or
// bytes above ASCII.
func encoded(key string) bool {
	switch key {
	case "comm", "name", "path", "exe", "cwd", "proctitle":
		return true
	}
	return false
}

// fields are values by key, in their order.
type fields []struct{ key, value string }

// of is the first value of a key.
func (f fields) of(key string) string {
	for i := range f {
		if f[i].key == key {
			return f[i].value
		}
	}
	return ""
}

// last is the last value of a key. Contexts and class end a record, behind what systemd has of the command line of who
// asked, which may have their names in it.
func (f fields) last(key string) string {
	for i := len(f) - 1; i >= 0; i-- {
		if f[i].key == key {
			return f[i].value
		}
	}
	return ""
}

// fieldsOf splits "key=value key="a value"" and adds it to what is in f. A word without "=" belongs to the value before
// it, as ausearch -i prints blanks in values.
func fieldsOf(f fields, text string, interpreted bool) fields {
	for {
		for text != "" && separator(text[0]) {
			text = text[1:]
		}
		if text == "" {
			return f
		}
		stop := 0
		for stop < len(text) && text[stop] != '=' && !separator(text[stop]) {
			stop++
		}
		if stop == len(text) || text[stop] != '=' {
			if last := len(f) - 1; interpreted && last >= 0 && encoded(f[last].key) {
				f[last].value += " " + text[:stop]
			}
			text = text[stop:]
			continue
		}
		key := text[:stop]
		text = text[stop+1:]
		var value string
		if quoted, is := strings.CutPrefix(text, `"`); is {
			value, text, _ = strings.Cut(quoted, `"`)
		} else {
			end := 0
			for end < len(text) && !separator(text[end]) {
				end++
			}
			value, text = text[:end], text[end:]
			if !interpreted && encoded(key) {
				value = decoded(value)
			}
		}
		f = append(f, struct{ key, value string }{key, value})
	}
}

// separator says whether a byte stands between fields; 1d before those that auditd adds.
func separator(b byte) bool { return b == ' ' || b == '\t' || b == '\x1d' }

// decoded is the text behind hexadecimal digits, or the text itself.
func decoded(text string) string {
	if text == "(null)" || text == "?" {
		return ""
	}
	if bytes, err := hex.DecodeString(text); err == nil {
		return string(bytes)
	}
	return text
}

// number is 0 for what is none.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
