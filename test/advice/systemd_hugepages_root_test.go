//go:build root

package advice

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	nrHugePages = "/proc/sys/vm/nr_hugepages"
	bootSysctls = "/etc/sysctl.d/60-bulkhead.conf"
)

func readTrimmed(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// hugeServers has both servers of the machine ask for huge pages, and starts them anew. `on` is huge_pages of
// PostgreSQL.
func hugeServers(t *testing.T, on string) {
	t.Helper()
	sh(t, `printf '[mariadbd]\nlarge_pages=ON\ninnodb_buffer_pool_size=96M\n' >/etc/mysql/mariadb.conf.d/98-large.cnf
		for d in /etc/postgresql/*/main; do
			printf 'huge_pages=`+on+`\nshared_buffers=96MB\n' >"$d/conf.d/huge.conf"
		done
		systemctl restart mariadb 'postgresql@*.service'`)
	for range 60 { // pg_ctlcluster returns before it answers
		if out := run(t, "discover"); strings.Contains(out, "mysql3306") && strings.Contains(out, "postgresql5432") {
			return
		}
		time.Sleep(time.Second)
	}
	t.Fatal("the servers do not come back")
}

func plainServers(t *testing.T) {
	t.Helper()
	sh(t, `rm -f /etc/mysql/mariadb.conf.d/98-large.cnf /etc/postgresql/*/main/conf.d/huge.conf
		systemctl restart mariadb 'postgresql@*.service'`)
}

// used is what an instance has in pages of a pool.
type used struct {
	Name string `json:"instance"`
	Pool int64  `json:"huge_pages_bytes"`
}

// memoryOf is what `bulkhead memory` says of huge pages.
type memoryOf struct {
	Instances []used `json:"instances"`
	Huge      struct {
		Instances []struct {
			Name  string `json:"instance"`
			Pages int64  `json:"pages"`
			Holds int64  `json:"holds_pages"`
			Told  bool   `json:"told"`
		} `json:"instances"`
	} `json:"huge_pages"`
}

// setTo is the value to which a plan sets something.
func setTo(t *testing.T, p planned, name string) string {
	t.Helper()
	for _, set := range p.Sets {
		if value, is := strings.CutPrefix(set, name+" = "); is {
			return value
		}
	}
	t.Fatalf("the plan does not set %s: %+v", name, p)
	return ""
}

// governed has each server in a group of its own, until the test ends.
func governed(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := "version: 1\ngroups:\n  \"mysql{port}\": {role: database, each: {engine: mysql}}\n" +
		"  \"postgresql{port}\": {role: database, each: {engine: postgresql}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", run(t, "--policy", file, "apply"))
	t.Cleanup(func() {
		run(t, "release", "--all")
		sh(t, "rm -r /var/lib/bulkhead") // a host that was released is not tuned by the tests after this one
	})
}

// A MariaDB and a PostgreSQL are told to use huge pages, and there are none: tune makes the pool that both take, with a
// limit for the group of each and the memory that they may lock. They are seen to use it once they were started anew,
// none is left over beyond the margin, and rollback leaves nothing of it, neither in the kernel nor in /etc.
func TestHugePagesByTune(t *testing.T) {
	inLab(t)
	governed(t)
	before, etc := readTrimmed(t, nrHugePages), configuration(t)
	if before != "0" {
		t.Fatalf("the machine has a pool of %s pages", before)
	}
	t.Cleanup(func() { plainServers(t) })
	hugeServers(t, "try")

	var plan []planned
	ask(t, &plan, "tune", "plan", "MEM-47", slow)
	if len(plan) != 1 {
		t.Fatalf("the plan is %+v", plan)
	}
	pages := setTo(t, plan[0], "vm.nr_hugepages")
	setTo(t, plan[0], "unit mariadb.service/LimitMEMLOCK") // Debian's service has 512 KiB
	limits := map[string]string{"mysql3306": setTo(t, plan[0], "mysql3306:memory.huge"),
		"postgresql5432": setTo(t, plan[0], "postgresql5432:memory.huge")}
	t.Logf("%s", run(t, "memory"))
	t.Logf("%s", run(t, "tune", "apply", "MEM-47", slow))
	if got := readTrimmed(t, nrHugePages); got != pages {
		t.Fatalf("the pool has %s pages, and %s were planned", got, pages)
	}
	if text := readTrimmed(t, bootSysctls); !strings.Contains(text, "vm.nr_hugepages = "+pages) {
		t.Errorf("%s has no pool of %s pages:\n%s", bootSysctls, pages, text)
	}

	for group, limit := range limits {
		if out := run(t, "status", group); !strings.Contains(out, "memory.huge") {
			t.Errorf("status does not have memory.huge = %s of %s:\n%s", limit, group, out)
		}
	}

	hugeServers(t, "on")
	var m memoryOf
	ask(t, &m, "memory")
	holds, takes := int64(0), int64(0)
	for _, i := range m.Huge.Instances {
		holds, takes = holds+i.Holds, takes+i.Pages
		at := slices.IndexFunc(m.Instances, func(u used) bool { return u.Name == i.Name })
		if !i.Told {
			continue
		}
		if at < 0 || m.Instances[at].Pool == 0 || i.Holds == 0 {
			t.Errorf("%s uses no huge pages: %+v", i.Name, m)
		}
	}
	pool, _ := strconv.ParseInt(pages, 10, 64)
	t.Logf("the pool has %d pages, the servers take %d and hold %d", pool, takes, holds)
	// 1 % is the margin of the plan, and 3 pages the alignment of MariaDB's buffer pool (docs/memory.md).
	if holds == 0 || pool-holds > pool*3/100+4 {
		t.Errorf("%d of %d pages are left over", pool-holds, pool)
	}
	for _, f := range advice(t).Findings {
		if slices.Contains([]string{"MEM-19", "MEM-46", "MEM-47", "MEM-51"}, f.Rule) {
			t.Errorf("%s is found beside a pool that fits: %+v", f.Rule, f)
		}
	}
	for _, instance := range []string{"mysql3306", "postgresql5432"} {
		if out := run(t, "memory", instance); !strings.Contains(out, "really used") {
			t.Errorf("memory %s does not say that huge pages are used:\n%s", instance, out)
		}
	}

	// The pool is taken back under servers that use it: they go on, and what they have is given back when they end.
	t.Logf("%s", run(t, "tune", "rollback", "MEM-47"))
	if got := readTrimmed(t, nrHugePages); got != before {
		t.Errorf("after rollback the pool has %s pages", got)
	}
	if found(advice(t), fault{rule: "MEM-51", on: "postgresql5432"}) == nil {
		t.Error("advise does not say that PostgreSQL will not start again without the pool")
	}
	sh(t, "mariadb -e 'select 1'; su postgres -c 'psql -c \"select 1\"'")
	plainServers(t)
	if meminfo := readTrimmed(t, "/proc/meminfo"); !strings.Contains(meminfo, "HugePages_Total:       0\n") {
		t.Errorf("pages are left: %s", meminfo)
	}
	same(t, "after rollback", etc, configuration(t))
}
