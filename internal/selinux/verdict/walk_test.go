package verdict_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/selinux/verdict"
)

// What MariaDB's script of SST by rsync was denied when its shell looked at all that is right in "/" is the script's,
// and no rule: the lab captured it.
func TestWalkOfARealScript(t *testing.T) {
	text, err := os.ReadFile("../avc/testdata/lab-galera.log")
	if err != nil {
		t.Fatal(err)
	}
	for name, host := range map[string]verdict.Host{"without a policy": {}, "with one": centos()} {
		r := verdict.Judge(read(t, string(text)), host)
		found := 0
		for _, v := range r.Verdicts {
			if !slices.Contains([]string{"boot_t", "mnt_t", "unlabeled_t"}, v.Target) {
				continue
			}
			if found++; v.Kind != verdict.Script || len(v.Remedies) > 0 || v.Needed != "" ||
				!strings.Contains(v.Because[0], `"bash" looks at all that is right in /, and does no more there: it `+
					`was denied /boot, /lost+found, /mnt`) {
				t.Errorf("%s: %+v", name, v)
			}
		}
		if found != 5 {
			t.Errorf("%s: %d verdicts, want 5", name, found)
		}
		for _, rule := range r.Rules {
			if strings.Contains(rule, "boot_t") || strings.Contains(rule, "mnt_t") {
				t.Errorf("%s: %s is said to be needed", name, rule)
			}
		}
	}
}

// Few directories in "/", such that somebody made for a database, and what a process also reads, are no walk. Who runs
// which script the log may tell.
func TestWalks(t *testing.T) {
	line := func(pid int, permission, at, kind, class string) string {
		return fmt.Sprintf(`type=AVC msg=audit(1.000:%d): avc:  denied  { %s } for  pid=%d comm="sh" path="%s" `+
			"scontext=system_u:system_r:mysqld_t:s0 tcontext=system_u:object_r:%s:s0 tclass=%s permissive=1\n", pid,
			permission, pid, at, kind, class)
	}
	walk := func(pid int) string {
		return line(pid, "getattr", "/boot", "boot_t", "dir") + line(pid, "getattr", "/mnt", "mnt_t", "dir") +
			line(pid, "getattr", "/root", "admin_home_t", "dir")
	}
	command := `type=SYSCALL msg=audit(1.000:7): arch=c000003e syscall=4 success=yes exit=0 ppid=6 pid=7 comm="sh" ` +
		`exe="/usr/bin/dash"` + "\n" + fmt.Sprintf("type=PROCTITLE msg=audit(1.000:7): proctitle=%X\n",
		"sh\x00/usr/bin/sst")
	boot, mnt := line(7, "getattr", "/boot", "boot_t", "dir"), line(7, "getattr", "/mnt", "mnt_t", "dir")
	for name, c := range map[string]struct {
		log  string
		want string // of mnt_t:dir
		says string
	}{
		"a walk":             {log: walk(7), want: "script", says: "/boot, /mnt, /root"},
		"a walk of a script": {log: walk(7) + command, want: "script", says: "it runs /usr/bin/sst"},
		"two types":          {log: boot + mnt, want: "rule"},
		"of several processes": {log: boot + mnt + line(9, "getattr", "/root", "admin_home_t", "dir"),
			want: "rule"},
		"not right in /":       {log: strings.ReplaceAll(walk(7), `path="/`, `path="/srv/`), want: "rule"},
		"one that reads there": {log: walk(7) + line(7, "read", "/mnt/x", "mnt_t", "file"), want: "rule"},
		"another that reads":   {log: walk(7) + line(8, "read", "/mnt/x", "mnt_t", "file"), want: "script"},
		"another that goes by": {log: walk(7) + line(8, "search", "/mnt", "mnt_t", "dir"), want: "rule",
			says: "1 of the 2 denials"},
		"directories of one type": {log: mnt + line(7, "getattr", "/b", "mnt_t", "dir") +
			line(7, "getattr", "/c", "mnt_t", "dir"), want: "rule"},
	} {
		host := verdict.Host{Files: files{text: map[string]string{"/usr/bin/sst": "#!/bin/sh\n"}}}
		for _, v := range verdict.Judge(read(t, c.log), host).Verdicts {
			if v.Class == "dir" && v.Target == "mnt_t" && (string(v.Kind) != c.want ||
				!strings.Contains(strings.Join(v.Because, "\n"), c.says)) {
				t.Errorf("%s: %s\n%s", name, v.Kind, strings.Join(v.Because, "\n"))
			}
		}
	}
}
