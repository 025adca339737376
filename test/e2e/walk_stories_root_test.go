//go:build root

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/testhost"
)

// TestWalk does what README says on two MariaDB, a PostgreSQL and a Redis, command by command as they stand there, and
// then what a first user tries: at a terminal of 80 columns, and as somebody who reads what it says.
func TestWalk(t *testing.T) {
	w := newWalk(t)
	first, second, postgres, red := mariadb(t), mariadb(t), postgresql(t), redis(t)
	v := &visitor{walk: w, whole: t, mysql: first.name, servers: []*database{first, second, postgres, red}}
	for _, d := range v.servers {
		w.runs(d)
	}
	v.before = v.places()
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"install", v.install},
		{"the steps of README", v.steps},
		{"JSON", v.inJSON},
		{"slips", v.slips},
		{"help", v.help},
		{"groups of one's own", v.own},
		{"CPU", v.cpu},
		{"memory", v.memory},
		{"disk", v.disk},
		{"live changes", v.live},
		{"probe", v.probe},
		{"import", v.imports},
		{"the agent is killed", v.agentKilled},
		{"apply is killed", v.applyKilled},
		{"release", v.release},
		{"uninstall", v.uninstall},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			w.t = t
			step.do()
		})
		if w.t = t; !ok {
			t.FailNow()
		}
	}
	w.shown("../../README.md")
}

// visitor is the first user.
type visitor struct {
	*walk
	whole      *testing.T // the test with all its steps
	mysql      string     // the group of the first MariaDB
	servers    []*database
	before     map[string]string // where each server was before bulkhead came
	filesystem string            // a file system of its own, on a loop device
}

// places gives the directories of each server's main process in all hierarchies.
func (v *visitor) places() map[string]string {
	places := map[string]string{}
	for _, program := range []string{"mariadbd", "postgres", "redis-server"} {
		out, _ := v.inside("pidof", program).Output()
		for _, pid := range strings.Fields(string(out)) {
			places[program+" "+pid] = v.reads("/proc/" + pid + "/cgroup")
		}
	}
	if len(places) < len(v.servers) {
		v.t.Fatalf("only %d servers run", len(places))
	}
	return places
}

// groups are the directories of bulkhead in the machine's hierarchies.
func (v *visitor) groups() []string {
	found, err := filepath.Glob("/sys/fs/cgroup/*/bulkhead*")
	if err != nil {
		v.t.Fatal(err)
	}
	return slices.DeleteFunc(found, func(dir string) bool {
		return strings.HasPrefix(filepath.Base(dir), "bulkhead-") // of other tests
	})
}

// left are the files of bulkhead that the walk's host has and the machine has not.
func (v *visitor) left() (files []string) {
	for _, dir := range []string{"etc", "usr/local", "var/lib", "var/log", "run"} {
		top := v.upper(dir)
		err := filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
			if err == nil && strings.Contains(file[len(top):], "bulkhead") && d.Type()&fs.ModeDevice == 0 {
				files = append(files, "/"+dir+strings.TrimPrefix(file, top))
			}
			return err
		})
		if err != nil {
			v.t.Fatal(err)
		}
	}
	return files
}

func (v *visitor) install() {
	if old := v.groups(); len(old) > 0 {
		v.t.Fatalf("this machine is governed by bulkhead, or was left so by a test that was killed: %q\nhint: a walk "+
			"needs a machine without; rmdir removes what is empty", old)
	}
	commands, _ := blocks(v.t, "../../README.md", "Install")
	if !slices.Equal(commands, []string{"make install"}) {
		v.t.Errorf("README installs by %q", commands)
	}
	v.types(0, "cd "+v.repo+" && make install", "/usr/local/bin/bulkhead", "/etc/init.d/bulkhead",
		"bash-completion", "policy.schema.json", "docs?|doc/bulkhead/install.md")
	if out, _ := v.inside("pidof", "bulkhead").Output(); len(out) > 0 {
		v.t.Errorf("`make install` starts nothing, and %s runs", out)
	}
	v.types(0, "bulkhead --version", `^bulkhead \S+ \(go\S+, \S+(, commit [0-9a-f]{12})?\)$`)
	v.types(0, "bulkhead", "bulkhead discover", "bulkhead release --all")
}

// steps are README's, in its order.
func (v *visitor) steps() {
	commands, policies := blocks(v.t, "../../README.md", "A first policy on a real database")
	if len(policies) == 0 {
		v.t.Fatal("README shows no policy")
	}
	v.writes("/run/readme.yaml", policies[0])
	mysql := v.servers[0]
	var planned string
	ways := map[string]func(line string){
		"bulkhead discover": func(line string) {
			v.types(0, line, v.mysql+" mysql/mariadb", "evidence runs", "listens on port", "cpu.weight yes",
				v.servers[2].name+" postgresql", v.servers[3].name+" redis")
		},
		"bulkhead discover disks": func(line string) { v.types(0, line, v.mysql+" data", "redo log", "STORAGE") },
		"mkdir -p /etc/bulkhead":  func(line string) { v.types(0, line) },
		"bulkhead discover --as-policy > /etc/bulkhead/policy.yaml": func(line string) {
			made, groups := strings.Join(v.left(), " "), v.groups()
			if strings.Contains(made, "/var/") || len(groups) > 0 {
				v.t.Errorf("to look changes nothing, and there are %s, %q", made, groups)
			}
			v.types(0, line)
			// Of what it proposes, a limit on each MariaDB and the neighbour.
			text := v.reads("/etc/bulkhead/policy.yaml")
			for _, proposed := range []string{"    # memory: {max: ", "  # reports: "} {
				if !strings.Contains(text, proposed) {
					v.t.Errorf("the starter has no %q:\n%s", proposed, text)
				}
				text = strings.Replace(text, proposed, strings.Replace(proposed, "# ", "", 1), 1)
			}
			text = regexp.MustCompile(`# cpu: \{limit: .*\}`).ReplaceAllString(text, "cpu: {limit: 1.5}")
			v.writes("/etc/bulkhead/policy.yaml", text+"\n")
			v.types(0, "bulkhead check --policy /run/readme.yaml", "readme.yaml: sound")
		},
		"bulkhead check": func(line string) { v.types(0, line, "policy.yaml: sound; 5 groups") },
		"bulkhead plan": func(line string) {
			planned = v.types(0, line, v.mysql+" directories", `cpu.limit new -> 1.5 cores`, "guaranteed")
			v.types(3, line+" --exit-code")
			v.types(0, line+" --long", "undo: move back", "cpu.shares|cpu.weight")
			v.types(0, line+" --diff")
			v.types(0, line+" --summary", v.mysql+" new, 3 values, 1 process moved")
		},
		`bulkhead apply --reason "first policy"`: func(line string) {
			done := v.types(0, line, "; revision 1", "no agent is running")
			counts := regexp.MustCompile(`(\d+) mkdir, (\d+) write, \d+ move of (\d+) processes`)
			count := counts.FindStringSubmatch(planned)
			if count == nil {
				v.t.Fatalf("plan counts nothing:\n%s", planned)
			}
			v.says(line, done, fmt.Sprintf("%s directories made, %s values written, %s processes moved", count[1],
				count[2], count[3]))
			v.types(0, line, "nothing to do")
			v.types(9, "bulkhead status --check", "no agent is running")
		},
		"update-rc.d bulkhead defaults; /etc/init.d/bulkhead start": func(line string) {
			v.types(0, line, "running")
			v.types(0, "bulkhead status --check", "^ok: revision 1, 5 groups, every limit in force, agent running$")
		},
		"bulkhead status": func(line string) {
			text := v.types(0, line, "policy revision 1", "agent: pid", v.mysql+" 1 ", "reports 0 .* ok")
			for _, row := range strings.Split(text, "\n") {
				if fields := strings.Fields(row); len(fields) > 0 && strings.HasPrefix(fields[0], "mysql") &&
					(len(fields) < 6 || fields[4] != "1.50") {
					v.t.Errorf("the limit is 1.5: %s", row)
				}
			}
			v.types(0, line+" "+v.mysql, "limit: 1.50 cores", "cpu.limit 1.5 cores 1.5 cores ok")
			v.types(0, "bulkhead verify", " 0 not enforced")
			v.types(124, "timeout 2 bulkhead status --watch --every 1s", "CPU MEMORY")
			if !strings.Contains(v.screen.String(), "\x1b[H\x1b[2J") {
				v.t.Error("--watch does not begin the screen anew")
			}
		},
		"bulkhead explain $(pidof -s mariadbd)": func(line string) {
			v.types(0, line, `\(mariadbd\): in group mysql\d+, by the rule engine: mysql`, "all keys match",
				"cpu.limit")
		},
		"bulkhead verify --probe --dry-run": func(line string) {
			v.types(0, line, "cpu.limit, beside the group", "dry run: nothing was started")
		},
		"bulkhead release --all": func(string) {}, // in the end
	}
	for _, line := range commands {
		way, known := ways[line]
		if !known {
			v.t.Fatalf("README says %q: the walk does not know it", line)
		}
		way(line)
	}
	if group := where(v.t, mysql.main())["cpu"]; group != "/bulkhead."+v.mysql {
		v.t.Errorf("MariaDB is in %s", group)
	}
	if last := commands[len(commands)-1]; last != "bulkhead release --all" {
		v.t.Errorf("README ends with %q", last)
	}
}

// main is the server's main process, seen from the machine: nsenter's child.
func (d *database) main() int {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", d.process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		d.t.Fatalf("the processes below nsenter: %v", err)
	}
	return pid
}

func (v *visitor) inJSON() {
	for _, line := range []string{"discover", "discover disks", "check", "plan", "notes", "status", "verify", "history",
		"schedule", "advise", "version", "status nosuch", "set reports:cpu.limt=1", "explain 1"} {
		var into any
		v.json(&into, "bulkhead "+line)
	}
}

// slips are what a hand types wrong. Each has one error, at its place, and says what to do.
func (v *visitor) slips() {
	const head = "version: 1\ngroups:\n"
	for _, slip := range [][2]string{
		{"  reports\n    role: batch\n", "3:.* colon is missing .* hint: write `reports:`"},
		{"  reports:\n    role batch\n    tasks: 5\n", "4:.* colon is missing .* hint: write `role: batch`"},
		{"  {port}redis:\n    each: {engine: redis}\n", "3:.* needs quotes .* hint: write"},
		{"  a: {match: [{user: report}], cpu.shares: 512}\n", "3:.*cpu.weight is .* 50 for 512"},
		{"  a: {match: [{user: report}], memory: {max: 48G}}\n", "3:.* hint: write 48GB or 48GiB"},
		{"  a: {match: [{user: report}], memry: {max: 4GiB}}\n", "3:.* did you mean memory"},
		{"\ta: {match: [{user: report}]}\n", "3:.*tab"},
		{"  a: {match: [{user: report}]}\n  a: {tasks: 5}\n", "4:.* twice"},
		{"  a: {match: [{user: report}], cpu: {limit: 2000}}\n", "3:.* above the host's .* CPU"},
		{"  a: {tasks: 5, io: [{on: /usr/lb, read: {iops: 9}}]}\n", "3:.* no such path .* did you mean /usr/lib"},
		{"  a: {match: [{user: report}], role: databse}\n", "3:.* did you mean database"},
	} {
		v.writes("/run/slip.yaml", head+slip[0])
		v.types(2, "bulkhead check --policy /run/slip.yaml", "slip.yaml:"+slip[1], "1 problem; nothing was changed$")
	}
	v.writes("/run/slip.yaml", head+"  a: {match: [{user: nosuchuser}], tasks: 5}\n")
	v.types(0, "bulkhead check --policy /run/slip.yaml", `VOID: .*user "nosuchuser" is not known`)
	for line, words := range map[string]string{
		"bulkhead aply":                        "did you mean \"apply\"",
		"bulkhead apply --resaon x":            "unknown flag: --resaon hint: `bulkhead apply --help`",
		"bulkhead set reports:cpu.limt=1":      "did you mean cpu.limit",
		"bulkhead set reprts:cpu.limit=1":      "the groups are .*reports",
		"bulkhead set reports:memory.max=1G":   "write 1GB or 1GiB",
		"bulkhead set reports:tasks=5 --for 5": "not a time such as 90s",
		"bulkhead run reports":                 "say which command",
		"bulkhead release":                     "say what to release",
		"bulkhead explain 4194303":             "no process 4194303",
		"bulkhead rollback --to 7":             "the revisions that were in force are 1",
	} {
		v.types(2, line, words)
	}
}

// help is that of every verb, in the width of the terminal.
func (v *visitor) help() {
	for _, verb := range v.verbs() {
		v.types(0, "bulkhead "+verb+" --help", "Usage:")
	}
	v.types(0, "bulkhead bench list", "demo")
}

// own adds groups to the policy, through the agent.
func (v *visitor) own() {
	device, _ := testhost.LoopDevice(v.whole, 64<<20)
	v.filesystem = "/run/disk"
	v.types(0, fmt.Sprintf("mkfs.ext4 -q %s && mkdir %s && mount %[1]s %[2]s", device, v.filesystem))
	v.writes("/etc/bulkhead/policy.yaml", v.reads("/etc/bulkhead/policy.yaml")+fmt.Sprintf(`
  big: {cpu: {weight: 400, cpus: "0"}}
  small: {cpu: {weight: 100, cpus: "0"}}
  capped:
    cpu: {limit: 0.5}
    memory: {max: 64MiB}
    tasks: 60
    io: [{on: %s, write: {bandwidth: 10MiB/s}}]
`, v.filesystem))
	v.types(0, "bulkhead apply --dry-run", "capped directories", "weight 400", "dry run: nothing was changed")
	v.types(0, "bulkhead apply --reason 'groups of my own'", "revision 2")
	v.types(0, "bulkhead plan", "nothing to do")
	if v.v1Disks() {
		v.types(0, "bulkhead notes", "capped: io.write.bandwidth", "fsync", "not enforced for buffered writes")
	}
}

// v1Disks says whether cgroup v1 limits disks: it does not hold what the kernel writes back later.
func (v *visitor) v1Disks() bool {
	_, err := os.Stat("/sys/fs/cgroup/blkio/bulkhead.capped")
	return err == nil
}

// cpu: two groups of weights 4 and 1 on one CPU.
func (v *visitor) cpu() {
	for _, group := range []string{"big", "small"} {
		hog := v.inside("timeout", "3", "bulkhead", "run", group, "--", "sh", "-c", "while :; do :; done")
		if err := hog.Start(); err != nil {
			v.t.Fatal(err)
		}
		defer func() { _ = hog.Wait() }()
	}
	used := func() map[string]int64 {
		var st api.Status
		v.json(&st, "bulkhead status")
		use := map[string]int64{}
		for _, g := range st.Groups {
			if u := g.Usage.CPU; u.User != nil && u.System != nil {
				use[g.Group] = *u.User + *u.System
			}
		}
		return use
	}
	soon(v.t, "both to run", func() bool { use := used(); return use["big"] > 0 && use["small"] > 0 })
	begin := used()
	time.Sleep(1500 * time.Millisecond)
	end := used()
	big, small := end["big"]-begin["big"], end["small"]-begin["small"]
	if big < 2*small {
		v.t.Errorf("of weights 400 and 100 one got %d µs and the other %d", big, small)
	}
	v.types(0, "bulkhead status", `big \d`, `small \d`)
}

// memory: what goes over the limit is killed, inside the group alone.
func (v *visitor) memory() {
	v.types(137, "bulkhead run capped -- tail /dev/zero")
	v.soon(0, `bulkhead status capped | grep -q "OOM kills [1-9]"`) // an answer is given again for a second
	v.types(0, "bulkhead status capped", "memory.max 64 MiB 64 MiB ok", "OOM kills [1-9]")
}

// disk: what a process hands to the disk itself takes as long as the limit says, at least.
func (v *visitor) disk() {
	for _, flag := range []string{"oflag=direct", "conv=fsync"} {
		begin := time.Now()
		v.types(0, "bulkhead run capped -- dd if=/dev/zero of="+v.filesystem+"/f bs=256k count=40 "+flag, "copied")
		if took := time.Since(begin); took < 500*time.Millisecond {
			v.t.Errorf("10 MiB at 10 MiB/s took %v with %s", took, flag)
		}
	}
	v.types(0, "bulkhead verify capped", "io.write.bandwidth .*10 MiB/s")
}

// live are README's changes without an edit.
func (v *visitor) live() {
	v.types(0, "bulkhead set reports:cpu.limit=1 --for 2h", "1 value written", "in force over the policy")
	v.types(0, "bulkhead set capped:tasks=50 --for 2s --reason 'a try'", "capped:tasks=50 until")
	v.types(7, "bulkhead run reports -- sh -c 'exit 7'")
	v.types(0, "bulkhead run reports -- pg_dump --version", "PostgreSQL") // more takes long where others are busy
	idle := v.inside("sleep", "120")
	if err := idle.Start(); err != nil {
		v.t.Fatal(err)
	}
	defer func() { _ = idle.Process.Kill(); _ = idle.Wait() }()
	var pid string
	soon(v.t, "sleep to run", func() bool {
		out, _ := v.inside("pidof", "-s", "sleep").Output()
		pid = strings.TrimSpace(string(out))
		return pid != ""
	})
	v.types(0, "bulkhead move reports "+pid, "1 process moved")
	v.types(0, "bulkhead explain "+pid, "in group reports")
	v.types(5, "bulkhead move reports $(pidof -s mariadbd)", "--force --reason")
	v.types(0, "bulkhead move --back "+pid, "1 process")
	v.soon(0, "bulkhead history | grep -q 'end .*capped:tasks=50'")
	v.types(0, "bulkhead history", `1 \d{4}-\d\d-\d\d \d\d:\d\d:\d\d apply 1 root done \d+ first policy`,
		`reports:cpu.limit=1 `, "--for 2h", "end capped:tasks=50", "by root.*: a try")
	v.types(0, "bulkhead history --long", "cpu.cfs_quota_us|cpu.max", "pid ")
	v.types(0, "bulkhead unset reports:cpu.limit", "1 value written")
	v.types(0, "bulkhead set reports:cpu.limit=1 --confirm-within 1h", "on trial")
	v.types(0, "bulkhead confirm")
	v.types(0, "bulkhead unset reports:cpu.limit")
}

func (v *visitor) probe() {
	code, words := 0, "0 not enforced"
	if v.v1Disks() {
		code, words = 4, "5 limits measured, 1 not enforced"
	}
	v.types(code, "bulkhead verify --probe --span 500ms capped", "capped cpu.limit alone 0.5", "capped tasks to the",
		"capped io.write.bandwidth on .* buffered", words)
}

func (v *visitor) imports() {
	v.writes("/run/cgconfig.conf", "group app {\n\tcpu { cpu.shares = 512; }\n\tdevices { devices.deny = a; }\n}\n")
	v.writes("/run/cgrules.conf", "report cpu,memory app\n")
	v.types(0, "bulkhead import cgconfig /run/cgconfig.conf --rules /run/cgrules.conf > /run/imported.yaml",
		"devices.deny", "not carried over|does not govern")
	v.types(0, "bulkhead check --policy /run/imported.yaml", "imported.yaml: sound")
}

// agentKilled: limits stay in force, and who looks is told.
func (v *visitor) agentKilled() {
	v.types(0, "kill -9 $(cat /run/bulkhead.pid); sleep 0.2")
	v.types(9, "bulkhead verify", " 0 not enforced", "no agent is running")
	v.types(0, "bulkhead status", "agent: NOT RUNNING; the limits stay in force")
	v.types(9, "bulkhead status --check", "no agent is running", "hint: `systemctl start bulkhead`")
}

// applyKilled: the change is undone by whoever comes next. The program that is killed is built for tests.
func (v *visitor) applyKilled() {
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(v.dir, "bulkhead"))
	}
	if err != nil {
		v.t.Fatal(err)
	}
	policy := v.reads("/etc/bulkhead/policy.yaml")
	v.writes("/etc/bulkhead/policy.yaml", strings.NewReplacer("tasks: 60", "tasks: 70", "max: 64MiB", "max: 80MiB").
		Replace(policy)+"\n")
	killed := "BULKHEAD_TEST_CRASH='kill 0' " + filepath.Join(v.dir, "bulkhead") + " apply --reason 'cut off'"
	v.types(137, killed)
	v.types(0, "bulkhead status", "INTERRUPTED")
	v.types(8, "bulkhead status --check", "`bulkhead rollback`")
	v.types(8, "bulkhead verify", "interrupted")
	v.types(0, "bulkhead rollback", "undone|undid|wrote|written")
	v.types(9, "bulkhead verify", " 0 not enforced", "no agent is running")
	v.types(0, "bulkhead rollback", "already undone: nothing to do")
	v.types(0, "bulkhead status capped", "tasks 60 tasks 60 tasks ok", "memory.max 64 MiB 64 MiB ok")
	v.types(137, killed)
	v.types(0, "/etc/init.d/bulkhead start", "running")
	v.types(0, "bulkhead status --check", "^ok: revision 2") // what was cut off is undone before start returns
	v.types(0, "bulkhead apply", "revision [345]")
	v.types(0, "bulkhead rollback --to 1", "repeats revision 1")
	v.types(2, "bulkhead rollback", `no revision before 1, which revision \d repeats`)
}

// release is the emergency exit: with the agent dead and the policy broken.
func (v *visitor) release() {
	v.types(0, "kill -9 $(cat /run/bulkhead.pid); sleep 0.2; echo '{' >/etc/bulkhead/policy.yaml")
	v.types(2, "bulkhead check", "policy.yaml:")
	v.types(0, "bulkhead release --all", "processes moved", "directories removed")
	if left := v.groups(); len(left) > 0 {
		v.t.Errorf("%q are left", left)
	}
	if now := v.places(); fmt.Sprint(now) != fmt.Sprint(v.before) {
		v.t.Errorf("the servers are in %v, before they were in %v", now, v.before)
	}
	v.types(0, "bulkhead status", "RELEASED: nothing is governed")
	v.types(7, "bulkhead verify", "everything is released")
	v.types(7, "bulkhead status --check", "everything is released")
	v.types(0, "bulkhead history", "release --all")
}

// uninstall is docs/install.md's, in its order.
func (v *visitor) uninstall() {
	commands, _ := blocks(v.t, "../../docs/install.md", "Taking it away")
	if !slices.Contains(commands, "make uninstall") {
		v.t.Errorf("docs/install.md takes it away by %q", commands)
	}
	v.types(0, "umount "+v.filesystem)
	for _, line := range commands {
		if line == "make uninstall" {
			line = "cd " + v.repo + " && " + line
		}
		v.types(0, line)
	}
	if left := v.left(); len(left) > 0 {
		v.t.Errorf("%q are left", left)
	}
}
