//go:build root

package selinux

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/selinux/avc"
)

// moment is now, for --since; the log has parts of seconds that it has not.
func (r *rig) moment() string {
	time.Sleep(1100 * time.Millisecond)
	return time.Now().Format(time.DateTime)
}

// captured is a file with the records of denials of a domain since a moment, as auditd wrote them.
func (r *rig) captured(since, domain string) string {
	r.t.Helper()
	at, err := time.ParseInLocation(time.DateTime, since, time.Local)
	if err != nil {
		r.t.Fatal(err)
	}
	logs, err := filepath.Glob("/var/log/audit/audit.log*")
	if err != nil {
		r.t.Fatal(err)
	}
	text := ""
	for i := len(logs) - 1; i >= 0; i-- { // the oldest first
		data, err := os.ReadFile(logs[i])
		if err != nil {
			r.t.Fatal(err)
		}
		text += string(data)
	}
	kept := ""
	for line := range strings.Lines(text) {
		log := &avc.Log{}
		if !strings.HasPrefix(line, "type=AVC ") || log.Read(strings.NewReader(line), time.Now()) != nil {
			continue
		}
		if len(log.Denials) == 1 && log.Denials[0].Source.Type == domain && !log.Denials[0].When.Before(at) {
			kept += line
		}
	}
	file := filepath.Join(r.dir, "captured")
	r.write(file, kept)
	return file
}

// enforcedSince sees that the kernel was never told to stop enforcing, which it writes into the log.
func (r *rig) enforcedSince(since string) {
	r.t.Helper()
	at, err := time.ParseInLocation(time.DateTime, since, time.Local)
	if err != nil {
		r.t.Fatal(err)
	}
	if mode := r.must("getenforce"); mode != "Enforcing" {
		r.t.Errorf("this machine is %s", mode)
	}
	for line := range strings.Lines(r.must("sh", "-c", "grep -h ^type=MAC_STATUS /var/log/audit/audit.log* || true")) {
		_, when, _ := strings.Cut(line, "audit(")
		when, _, _ = strings.Cut(when, ".")
		seconds, err := strconv.ParseInt(when, 10, 64)
		if err != nil || seconds >= at.Unix() && strings.Contains(line, " enforcing=0") {
			r.t.Errorf("SELinux was switched off: %s (%v)", line, err)
		}
	}
}

var ruleLine = regexp.MustCompile(`(?m)^allow (\S+) (\S+):(\S+) (?:\{ (.*) \}|(\S+));$`)

// rulesIn are the permissions of rules, by source, target and class. What a boolean would allow audit2allow writes
// apart, as it asks the policy of each denial; it is put together with the rest.
func rulesIn(text string) map[string]string {
	rules := map[string]string{}
	for _, r := range ruleLine.FindAllStringSubmatch(text, -1) {
		what := r[1] + " " + r[2] + ":" + r[3]
		all := strings.Fields(rules[what] + " " + r[4] + r[5])
		slices.Sort(all)
		rules[what] = strings.Join(slices.Compact(all), " ")
	}
	return rules
}

// denied prints what was captured, and compares the rules of audit2allow on the policy that is loaded with ours.
func (r *rig) denied(since, domain, name string) {
	r.t.Helper()
	file := r.captured(since, domain)
	data, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Logf("captured %s:\n%s", name, data)
	log := &avc.Log{}
	if err := log.Read(strings.NewReader(string(data)), time.Now()); err != nil || len(log.Denials) == 0 {
		r.t.Fatalf("%d denials, %v", len(log.Denials), err)
	}
	ours := ""
	for _, g := range avc.Groups(log.Denials) {
		ours += g.Rule() + "\n"
	}
	theirs := r.must("audit2allow", "-i", file)
	r.t.Logf("audit2allow on the loaded policy:\n%s", theirs)
	if got := rulesIn(theirs); len(got) == 0 || !maps.Equal(got, rulesIn(ours)) {
		r.t.Errorf("our rules are\n%sand audit2allow's\n%s", ours, theirs)
	}
}
