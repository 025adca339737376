package classify

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
)

// policies returns the policies of the documentation, in order.
func policies(t *testing.T) []string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/classification.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		all = append(all, m[1])
	}
	if len(all) != 4 {
		t.Fatalf("the documentation holds %d policies", len(all))
	}
	return all
}

// What the documentation says about its examples is so.
func TestDocumentedExamples(t *testing.T) {
	docs := policies(t)
	mysqld := instance(engine.MySQL, "", 100, 3306, "/d")
	dump := engine.Helper{ID: procfs.ID{PID: 20, Start: proc(20, "", "").Start}, Kind: engine.HelperBackup,
		Tool: "mysqldump", Sure: true, How: "--port=3307"}
	instances := []engine.Instance{mysqld, instance(engine.MySQL, "", 101, 3307, "/e"),
		instance(engine.PostgreSQL, "", 102, 5432, "/pg")}
	owned := func(p procfs.Process, uid int) procfs.Process { p.UID = uid; return p }
	instances[1].Helpers = []engine.Helper{dump}
	init, self := owned(proc(1, "/sbin/init", "init"), 0), owned(proc(999, "/usr/bin/bulkhead", "bulkhead"), 0)
	cron := owned(proc(10, "/usr/sbin/cron", "cron"), 0)
	job := owned(proc(11, "/usr/bin/dash", "sh", "-c", "nightly"), 0)
	job.PPID = 10

	for _, test := range []struct {
		doc   string
		procs []procfs.Process
		want  string
	}{
		{docs[0], []procfs.Process{proc(100, "/usr/sbin/mysqld", "mysqld"),
			proc(20, "/usr/bin/mysqldump", "mysqldump", "-P", "3307")}, "map[20:mysql3307/backup 100:mysql3306]"},
		{docs[1], []procfs.Process{init, self, cron, job}, "map[11:nightly]"},
		{docs[2], []procfs.Process{
			proc(21, "/o", "oracleBXTST02 (LOCAL=NO)"), proc(22, "/o", "ora_p000_BXTST02"),
			proc(23, "/o", "ora_p00f_BXTST02"),
			proc(24, "/o", "ora_lgwr_BXTST02"), proc(25, "/o", "ora_pmon_BXTST02"),
			proc(26, "/o", "oracleBXTST03 (LOCAL=NO)"),
			proc(27, "/o", "oracleBXTST02 (LOCAL=YES)"), proc(28, "/usr/bin/grep", "grep", "BXTST02.*LOCAL=NO"),
		}, "map[21:BX1/sessions 22:BX1/sessions 23:BX1/sessions 28:BX1/sessions]"},
		{docs[3], []procfs.Process{
			owned(proc(100, "/usr/sbin/mysqld", "mysqld"), uids["mysql"]),
			owned(proc(31, "/usr/bin/mysqldump", "mysqldump"), uids["mysql"]),
			proc(32, "/usr/bin/mysqldump", "mysqldump"), owned(proc(33, "/usr/bin/bash", "bash"), uids["mysql"]),
		}, "map[31:nightly 32:dumps 33:databases 100:mysql3306]"},
	} {
		groups, problems := Expand(parsed(t, test.doc), instances)
		in := input(test.procs...)
		in.Instances = instances
		in.Self.Start = self.Start
		result := Classify(groups, in)
		if got := fmt.Sprint(placed(result)); got != test.want || len(problems)+len(result.Problems) > 0 {
			t.Errorf("placed %s, want %s; problems %v %v\n%s", got, test.want, problems, result.Problems, test.doc)
		}
	}
}
