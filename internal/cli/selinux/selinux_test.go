package selinux

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/auditlog"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/verdict"
	"bulkhead/internal/transaction"
)

// explain runs the verb and gives what it prints, on 80 columns, and what it would print as JSON.
func explain(t *testing.T, in string, args ...string) (string, *view, error) {
	t.Helper()
	look := func() (*transaction.Controller, error) {
		return transaction.Open(transaction.Options{State: filepath.Join(t.TempDir(), "state")})
	}
	var out bytes.Buffer
	var got *view
	c := Command(render.Printable(&out, 80), look, func(v any, text func()) error {
		got = v.(*view)
		text()
		return nil
	})
	c.SetArgs(append([]string{"explain"}, args...))
	c.SetIn(strings.NewReader(in))
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.Execute()
	return out.String(), got, err
}

const document = "../../selinux/avc/testdata/percona-xtradb-cluster.log"

// The document's log, of another host: what there is to do is said, with lines of the log, and what stays open.
func TestExplain(t *testing.T) {
	out, v, err := explain(t, "", "--elsewhere", document)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"40 denials in 44 lines of " + document, "37 of them were in permissive mode",
		"not asked: the policy: the log is of another host",
		"script       24      28       a script, or its program, looks at everything",
		"script: 28 denials of ss, 2018-05-31 ", "  not   allow mysqld_t NetworkManager_t:process getattr;\n",
		"and 21 rules more; --json has all", `  do    change the script that starts "ss"`,
		"  broad generic target: tmp_t", "  open  which type it should have", "  line 44: type=AVC msg=",
		"5 rules are needed, once the rest is put right:\n", "  allow mysqld_t self:process { getattr setpgid };\n",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is missing in\n%s", part, out)
		}
	}
	for line := range strings.Lines(out) {
		if len(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("more than 80 columns: %q", line)
		}
	}
	text, err := json.Marshal(v)
	if err != nil || strings.Contains(string(text), "null") {
		t.Errorf("%v: null in %s", err, text)
	}
	snake := regexp.MustCompile(`"([A-Za-z_]+)":`)
	for _, m := range snake.FindAllStringSubmatch(string(text), -1) {
		if strings.ToLower(m[1]) != m[1] {
			t.Errorf("JSON has the name %q", m[1])
		}
	}
	if _, v, err = explain(t, "", "--elsewhere", "--since", "2018-06-01", document); err != nil || v.Denials != 0 {
		t.Errorf("since: %+v, %v", v, err)
	}
}

func TestNothingDenied(t *testing.T) {
	out, v, err := explain(t, "audit: audit_lost=3\n", "-")
	if err != nil || v.Denials != 0 || v.Verdicts == nil || v.Rules == nil ||
		!strings.Contains(out, "Nothing was denied") || !strings.Contains(out, "semodule -DB") ||
		!strings.Contains(out, "warning: audit lost 3 records until line 1") {
		t.Errorf("%v: %+v\n%s", err, v, out)
	}
}

// Each error says what to do.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ args, hint string }{
		{"--elsewhere", ""}, {dir + "/none", "name a log that is there"}, {dir, "name a file that is a log"},
	} {
		if _, _, err := explain(t, "", strings.Fields(c.args)...); err == nil || api.HintOf(err) != c.hint &&
			!strings.HasPrefix(api.HintOf(err), c.hint) {
			t.Errorf("%s: %v, hint %q", c.args, err, api.HintOf(err))
		}
	}
}

// Where there is no log of auditd, or it may not be read, what to do is said.
func TestAuditLogs(t *testing.T) {
	log := &avc.Log{}
	_, err := readAudit(sysroot.New(t.TempDir()), log, time.Time{})
	if err == nil || !strings.Contains(api.HintOf(err), "journalctl -k | bulkhead selinux explain -") {
		t.Errorf("no auditd: %v, hint %q", err, api.HintOf(err))
	}
	if os.Getuid() == 0 {
		return // who may read everything
	}
	closed := t.TempDir()
	if err := os.MkdirAll(closed+"/var/log/audit", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(closed+auditlog.Usual, nil, 0o000); err != nil {
		t.Fatal(err)
	}
	if _, err = readAudit(sysroot.New(closed), log, time.Time{}); !strings.Contains(api.HintOf(err), "sudo") {
		t.Errorf("not root: %v, hint %q", err, api.HintOf(err))
	}
}

// What others chose begins no line and steers no terminal.
func TestForeignText(t *testing.T) {
	evil := "x\nINTERRUPTED: evil\u202e\x1b[2J"
	v := &view{}
	v.fill(&avc.Log{Lost: []string{evil}, Denials: make([]avc.Denial, 1)}, loaded.Host{Missing: []string{evil}},
		&verdict.Report{Verdicts: []verdict.Verdict{{Kind: verdict.Rule, Count: 1, Rule: evil, Needed: evil,
			Because: []string{evil}, Fix: []string{evil}, Undecided: []string{evil}, Commands: []string{evil},
			Broad: []verdict.Flag{{Name: evil, Why: evil}}, Evidence: []verdict.Line{{Number: 1, Text: evil}}}},
			Rules: []string{evil}})
	v.Read = []string{evil}
	var out bytes.Buffer
	printView(&out, v)
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "INTERRUPTED") || strings.ContainsAny(line, "\u202e\x1b") {
			t.Errorf("it prints %q", line)
		}
	}
}
