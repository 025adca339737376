package avc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// longest is how much of a line is read; the kernel's records are below 9 KiB.
const longest = 64 << 10

// cut is as long as a program's message is, or nearly, that libselinux has cut (AVC_AUDIT_BUFSIZE is 1024).
const cut = 1000

// wrapped is how many lines more a record may have where a page has wrapped it.
const wrapped = 8

// kept is how many events may be open at a time: records of one stand near each other.
const kept = 512

// Read reads a log after those that were read before. Now is where dates without a year are counted from.
func (l *Log) Read(r io.Reader, now time.Time) error {
	if l.Processes == nil {
		l.Processes = map[int]Process{}
	}
	s := &reading{Log: l, now: now, events: map[string]*event{}, mode: Unknown,
		fields: make(fields, 0, 32)}
	lines := bufio.NewReaderSize(r, longest)
	for {
		line, err := readLine(lines)
		if line != "" || err == nil {
			l.Lines++
			s.line(line)
		}
		if errors.Is(err, io.EOF) {
			s.end()
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readLine gives the next line without its end, the beginning of it where it is too long.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	text := strings.TrimRight(string(line), "\r\n")
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = r.ReadSlice('\n')
	}
	return text, err
}

// event is what the records of one event say beside its denials. They come before them (ausearch) or after (auditd).
type event struct {
	denials []int // places in Log.Denials
	cwd     string
	paths   []pathRecord
	process Process
}

type pathRecord struct{ name, inode string }

type reading struct {
	*Log
	now    time.Time
	mode   Answer // permissive, as the log has told until here
	events map[string]*event
	order  []string
	open   string // a denial that has no class yet: pages wrap the lines that they publish
	at     int    // the line at which it began
	fields fields // room for those of a record
}

func (s *reading) line(text string) {
	if s.open != "" {
		// Any record begins with something that a wrapped line has not.
		if rest := strings.TrimLeft(text, " \t"); rest != "" && !strings.Contains(rest, "avc:") &&
			!strings.Contains(rest, "audit(") && s.Lines-s.at <= wrapped {
			s.open += " " + rest
			if complete(s.open) {
				s.close()
			}
			return
		}
		s.close()
	}
	when := time.Time{}
	if strings.HasPrefix(text, "{") && strings.Contains(text, `"MESSAGE"`) {
		text, when = ofJournal(text)
	}
	if at := strings.Index(text, "avc:"); at >= 0 {
		if !complete(text) && strings.Contains(text[at:], "{") {
			s.open, s.at = text, s.Lines
			return
		}
		s.access(text, at, s.Lines, when)
		return
	}
	s.other(text)
}

// complete says whether a record has all that it needs.
func complete(text string) bool { return strings.Contains(text, "tclass=") }

func (s *reading) close() {
	text := s.open
	s.open = ""
	s.access(text, strings.Index(text, "avc:"), s.at, time.Time{})
}

func (s *reading) end() {
	if s.open != "" {
		s.close()
	}
	for _, key := range s.order {
		s.finish(key)
	}
	s.order = nil
}

// ofJournal takes the message and its time out of what `journalctl -o json` prints.
func ofJournal(text string) (string, time.Time) {
	var entry struct {
		Message any    `json:"MESSAGE"`
		Time    string `json:"__REALTIME_TIMESTAMP"`
	}
	if json.Unmarshal([]byte(text), &entry) != nil {
		return text, time.Time{}
	}
	message, _ := entry.Message.(string)
	if micros, err := strconv.ParseInt(entry.Time, 10, 64); err == nil {
		return message, time.UnixMicro(micros).UTC()
	}
	return message, time.Time{}
}

// access reads a record of the access vector cache; at is where "avc:" stands in it.
func (s *reading) access(text string, at, line int, when time.Time) {
	h := headOf(text[:at], s.now)
	if h.when.IsZero() {
		h.when = when
	}
	body := strings.TrimLeft(text[at+len("avc:"):], " ")
	if h.user {
		// What follows the last quote are enriched fields; others may be in what the program was asked.
		if end := strings.LastIndexByte(body, '\''); end >= 0 {
			body = body[:end]
		}
		// The program's own part ends where libaudit's begins.
		if end := strings.LastIndex(body, " exe="); len("avc:")+end >= cut {
			s.Unread = append(s.Unread, Unread{Line: line, Why: "the program's message is cut: its contexts may be " +
				"those of a command line"})
			return
		}
	}
	switch {
	case strings.HasPrefix(body, "granted"):
		s.Granted++
		return
	case strings.HasPrefix(body, "received"):
		s.notice(body, h.when)
		return
	case !strings.HasPrefix(body, "denied"):
		return
	}
	d, err := denialOf(s.fields[:0], body, h.interpreted)
	if err != nil {
		s.Unread = append(s.Unread, Unread{Line: line, Why: err.Error()})
		return
	}
	d.Line, d.Text, d.User = line, strings.TrimSpace(text), h.user
	d.When, d.Serial, d.Node = h.when, h.serial, h.node
	if d.Permissive == Unknown {
		d.Permissive = s.mode
	}
	s.Denials = append(s.Denials, d)
	if h.key != "" {
		e := s.event(h.key)
		e.denials = append(e.denials, len(s.Denials)-1)
	}
}

// notice reads what a program was told of the policy.
func (s *reading) notice(body string, when time.Time) {
	switch {
	case strings.Contains(body, "policyload"):
		s.load(when)
	case strings.Contains(body, "enforcing=0"):
		s.mode = Yes
	case strings.Contains(body, "enforcing=1"):
		s.mode = No
	}
}

func (s *reading) load(when time.Time) {
	if !when.IsZero() {
		s.Loads = append(s.Loads, when)
	}
}

// event is that of a key, and lets go of the oldest ones.
func (s *reading) event(key string) *event {
	if e := s.events[key]; e != nil {
		return e
	}
	if len(s.order) >= kept {
		for _, old := range s.order[:kept/2] {
			s.finish(old)
		}
		s.order = append(s.order[:0], s.order[kept/2:]...)
	}
	e := &event{}
	s.events[key] = e
	s.order = append(s.order, key)
	return e
}

// finish gives the denials of an event what its other records say.
func (s *reading) finish(key string) {
	e := s.events[key]
	delete(s.events, key)
	if e.process.PID > 0 {
		known := s.Processes[e.process.PID]
		if len(e.process.Command) == 0 && known.Comm == e.process.Comm {
			e.process.Command = known.Command
		}
		s.Processes[e.process.PID] = e.process
	}
	for _, i := range e.denials {
		d := &s.Denials[i]
		if d.Exe == "" && !d.User {
			d.Exe = e.process.Exe
		}
		if d.Path == "" {
			d.Path = e.pathOf(d)
		}
	}
}

// pathOf is the path of the file of a denial: the record that has its inode.
func (e *event) pathOf(d *Denial) string {
	if d.inode == "" || d.Name == "" {
		return ""
	}
	for _, p := range e.paths {
		if p.inode != d.inode {
			continue
		}
		if strings.HasPrefix(p.name, "/") {
			return p.name
		}
		if e.cwd != "" && p.name != "" {
			return strings.TrimSuffix(e.cwd, "/") + "/" + strings.TrimPrefix(p.name, "./")
		}
	}
	return ""
}

// other reads what is no access.
func (s *reading) other(text string) {
	at := strings.Index(text, "audit")
	if at < 0 {
		if strings.Contains(text, "callbacks suppressed") {
			s.lost("the kernel left out messages (line %d): its log is limited in rate", s.Lines)
		}
		return
	}
	switch {
	case strings.Contains(text, "backlog limit exceeded"):
		s.lost("audit lost records (line %d): its backlog was full", s.Lines)
	case strings.Contains(text, "rate limit exceeded"):
		s.lost("audit lost records (line %d): its rate is limited", s.Lines)
	case strings.Contains(text, "audit_lost="):
		if n := valueOf(text, "audit_lost="); n != "0" {
			s.lost("audit lost %s records until line %d", n, s.Lines)
		}
	}
	end := strings.Index(text, "): ")
	if end < 0 {
		end = strings.Index(text, ") : ") // ausearch -i
	}
	if end < 0 {
		return
	}
	h := headOf(text[:end+1], s.now)
	body := text[end+2:]
	switch h.kind {
	case "MAC_POLICY_LOAD", "1403":
		s.load(h.when)
	case "MAC_STATUS", "1404":
		if v := valueOf(body, " enforcing="); v == "0" {
			s.mode = Yes
		} else if v == "1" {
			s.mode = No
		}
	case "SELINUX_ERR", "1401", "USER_SELINUX_ERR":
		s.Unread = append(s.Unread, Unread{Line: s.Lines, Why: "a context or a change of role that the policy " +
			"does not know (SELINUX_ERR): no rule helps, look at the line"})
	case "SYSCALL", "1300", "CWD", "1307", "PATH", "1302", "AVC_PATH", "PROCTITLE", "1327":
		if h.key != "" {
			s.event(h.key).take(h, fieldsOf(s.fields[:0], body, h.interpreted))
		}
	}
}

func (s *reading) lost(format string, args ...any) {
	const most = 20
	if len(s.Lost) < most {
		s.Lost = append(s.Lost, fmt.Sprintf(format, args...))
	}
}

// take reads a record that stands beside a denial.
func (e *event) take(h head, f fields) {
	switch h.kind {
	case "SYSCALL", "1300":
		e.process.PID, e.process.Parent = number(f.of("pid")), number(f.of("ppid"))
		e.process.Comm, e.process.Exe = f.of("comm"), f.of("exe")
	case "CWD", "1307":
		e.cwd = f.of("cwd")
	case "PATH", "1302", "AVC_PATH":
		if name := f.of("name") + f.of("path"); name != "" {
			e.paths = append(e.paths, pathRecord{name: name, inode: f.of("inode")})
		}
	case "PROCTITLE", "1327":
		if title := f.of("proctitle"); h.interpreted {
			e.process.Command = strings.Fields(title)
		} else if title != "" {
			e.process.Command = strings.Split(strings.TrimRight(title, "\x00"), "\x00")
		}
	}
}
