//go:build root

// Package advice plants faults on a real machine and holds `bulkhead advise` and `bulkhead tune` to them: all are
// found, each with the value that was planted and the file that it was read from.
package advice

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/api"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/testhost"
)

const (
	program = "/lab/bin/bulkhead"
	// slow is for emulation on a busy host.
	slow = "--wait=90s"
)

// sh runs a script that is to succeed and gives what it printed.
func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("/bin/sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// ask runs bulkhead with --json and reads its answer.
func ask(t *testing.T, into any, args ...string) {
	t.Helper()
	out := run(t, append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("bulkhead %s: %v\n%s", args, err, out)
	}
}

// run runs bulkhead. In emulation the kernel and systemd may need longer than it waits for them; it says so in a note,
// and is run again.
func run(t *testing.T, args ...string) string {
	t.Helper()
	for tries := 1; ; tries++ {
		cmd := exec.Command(program, args...)
		var complaints strings.Builder
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("bulkhead %s: %v\n%s\n%s", args, err, out, complaints.String())
		}
		if late := string(out) + complaints.String(); tries == 8 || !strings.Contains(late, "not looked at") {
			return string(out)
		}
		t.Logf("bulkhead %s once more: %s", args, complaints.String())
	}
}

func advice(t *testing.T, dsn ...string) *advise.Report {
	t.Helper()
	args := []string{"advise", slow}
	for _, d := range dsn {
		args = append(args, "--dsn", d)
	}
	rep := &advise.Report{}
	ask(t, rep, args...)
	for _, n := range rep.Notes {
		t.Log("note:", n)
	}
	return rep
}

// found is the finding of a fault; nil where there is none.
func found(rep *advise.Report, f fault) *advise.Finding {
	for i, g := range rep.Findings {
		if g.Rule == f.rule && (f.on == "" || slices.Contains(g.On, f.on)) {
			return &rep.Findings[i]
		}
	}
	return nil
}

// shows says whether a part of the evidence has the planted value with where it was read.
func shows(e advise.Evidence, f fault) bool {
	return strings.Contains(e.Value, f.value) && strings.Contains(e.From, f.from)
}

// kernel gives the planted files of the kernel with what they hold; of a choice the word that is chosen.
func kernel(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, f := range faults {
		if f.file == "" {
			continue
		}
		text, err := os.ReadFile(f.file)
		if err != nil {
			t.Fatal(err)
		}
		all[f.file] = strings.TrimSpace(string(text))
		if _, chosen, is := strings.Cut(all[f.file], "["); is {
			all[f.file], _, _ = strings.Cut(chosen, "]")
		}
	}
	all[oddOptions] = mountedAs(t)
	return all
}

// oddOptions tells the options of ext4 at /mnt/odd.
const oddOptions = "/proc/fs/ext4/vdh1/options"

// mountedAs is all that counts of the mount with planted options.
func mountedAs(t *testing.T) string {
	t.Helper()
	return strings.Join(strings.Fields(sh(t, "findmnt -no VFS-OPTIONS /mnt/odd; cat "+oddOptions)), " ")
}

// inSandbox follows advice on a mount where fstab cannot be written and a remount counts for nobody else, as in the
// agent's unit, and takes it back.
func inSandbox(t *testing.T, k kept) {
	t.Helper()
	const box = "systemd-run --quiet --wait --pipe -p ProtectSystem=strict -p 'ReadWritePaths=/var/lib /run' " + program
	t.Log(sh(t, box+" tune apply IO-13 FS-01 "+slow))
	line := strings.TrimSpace(sh(t, "grep -F /mnt/odd /etc/fstab"))
	if now := mountedAs(t); !strings.HasSuffix(line, "ext4 defaults,nofail,noatime,nodiscard 0 2") &&
		!strings.HasSuffix(line, "ext4 defaults,nofail,nodiscard,noatime 0 2") ||
		!strings.Contains(now, "noatime") || !strings.Contains(now, "nodiscard") {
		t.Errorf("from a sandbox: %s is mounted as %s", line, now)
	}
	sh(t, box+" tune rollback")
	same(t, "taken back from a sandbox", k.Planted, kernel(t))
	same(t, "taken back from a sandbox", k.Etc, configuration(t))
}

// same holds files to what they held.
func same(t *testing.T, when string, want, got map[string]string) {
	t.Helper()
	for _, file := range slices.Sorted(maps.Keys(want)) {
		if got[file] != want[file] {
			t.Errorf("%s: %s is %q and was %q", when, file, got[file], want[file])
		}
	}
	for _, file := range slices.Sorted(maps.Keys(got)) {
		if _, was := want[file]; !was {
			t.Errorf("%s: %s is there and was not", when, file)
		}
	}
}

// configuration is all below /etc: mode, owner and a sum of the contents of each file and directory. LVM writes its
// backups there by itself.
func configuration(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("/etc", func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == "/etc/lvm/backup" || file == "/etc/lvm/archive" {
			return cmp.Or(err, fs.SkipDir)
		}
		var at unix.Stat_t
		if err := unix.Lstat(file, &at); err != nil {
			return fmt.Errorf("stat %s: %w", file, err)
		}
		text, link := []byte(nil), ""
		switch d.Type() {
		case 0:
			text, err = os.ReadFile(file)
		case fs.ModeSymlink:
			link, err = os.Readlink(file)
		}
		all[file] = fmt.Sprintf("%o %d:%d %x %s", at.Mode, at.Uid, at.Gid, sha256.Sum256(text), link)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// set writes the files of the kernel of all faults.
func set(t *testing.T, value func(fault) string) {
	t.Helper()
	for _, f := range faults {
		if f.file == "" {
			continue
		}
		if err := os.WriteFile(f.file, []byte(value(f)), 0); err != nil {
			t.Fatalf("%s: write %q: %v", f.what, value(f), err)
		}
	}
}

// All planted faults are found with their evidence, and none before it was planted. What tune can set is right after
// `tune apply` of everything and stays so; what remains above info is of classes that tune leaves to the person, or of
// rules that have no value to set; and `tune rollback` gives back what was planted, each file of /etc with it.
func TestPlantedFaults(t *testing.T) {
	inLab(t)
	set(t, func(f fault) string { return f.good })
	sh(t, "sh testdata/before")
	clean := advice(t)
	for _, f := range faults {
		if g := found(clean, f); g != nil && !f.always {
			t.Errorf("%s: %s is found before it was planted: %+v", f.what, f.rule, g)
		}
	}

	sh(t, "sh testdata/plant")
	takeAIO(t)
	overflow(t)
	set(t, func(f fault) string { return f.bad })
	// In emulation on a busy host systemd and the files of disks may need longer than advise waits for them.
	var rep *advise.Report
	finding := map[string]*advise.Finding{}
	for tries := 0; tries < 20 && len(finding) < len(faults); tries++ {
		rep = advice(t, dsn...)
		for _, f := range faults {
			if g := found(rep, f); g != nil {
				finding[f.what] = g
			}
		}
	}
	planted := map[string]bool{}
	for _, f := range faults {
		planted[f.rule] = true
		g := finding[f.what]
		at := -1
		if g != nil {
			at = slices.IndexFunc(g.Evidence, func(e advise.Evidence) bool { return shows(e, f) })
		}
		switch {
		case g == nil:
			t.Errorf("%s: %s finds nothing on %q", f.what, f.rule, f.on)
		case at < 0:
			t.Errorf("%s: %s has no evidence %q from %q: %+v", f.what, f.rule, f.value, f.from, g.Evidence)
		default:
			t.Logf("%s %s | %s | %s | %s (%s)", foundMark, f.what, g.Rule, f.on, g.Evidence[at].Value,
				g.Evidence[at].From)
		}
	}
	t.Logf("%d faults were planted, and %d findings are there", len(faults), len(rep.Findings))
	for _, g := range rep.Findings {
		if !planted[g.Rule] {
			t.Logf("not planted: %s %s %s %v: %s", g.Severity, g.Rule, g.Title, g.On, g.Means)
		}
	}
	if t.Failed() {
		for _, u := range rep.Undecided {
			t.Logf("not decided: %s %v: %+v", u.Rule, u.On, u.Missing)
		}
	}
	if testing.Short() {
		t.Log("what the peers say of it takes minutes: LONG=1")
	} else {
		t.Run("peers", peers)
	}
	t.Run("tune", tune)
}

func inLab(t *testing.T) {
	t.Helper()
	testhost.RequireRoot(t)
	if os.Getenv("BULKHEAD_LAB") != "1" {
		t.Skip("plants faults in the whole machine: in the lab's machines only")
	}
}

// planned is a line of `tune plan`.
type planned struct {
	Rule   string   `json:"rule"`
	Sets   []string `json:"sets"`
	ByHand string   `json:"by_hand"`
}

// kept is what is known before the machine is started anew.
type kept struct {
	Settable map[string]bool   `json:"settable"` // rules that tune sets
	Planted  map[string]string `json:"planted"`  // files of the kernel
	Tuned    map[string]string `json:"tuned"`
	Etc      map[string]string `json:"etc"` // with what was planted
}

const keptFile = "/var/lib/planted.json"

// tune follows all of the advice that tune can follow.
func tune(t *testing.T) {
	k := kept{Settable: map[string]bool{}, Planted: kernel(t), Etc: configuration(t)}
	logins := []string{}
	for _, d := range dsn {
		logins = append(logins, "--dsn", d)
	}
	var plan []planned
	ask(t, &plan, slices.Concat([]string{"tune", "plan", slow}, logins)...)
	for _, p := range plan {
		if p.ByHand == "" {
			k.Settable[p.Rule] = true
		}
	}
	for _, f := range faults {
		if f.tuned && !k.Settable[f.rule] {
			t.Errorf("%s: tune does not set %s", f.what, f.rule)
		}
	}
	inSandbox(t, k)
	apply := slices.Concat([]string{"tune", "apply", "--severity", "info", slow}, logins)
	t.Logf("bulkhead %s\n%s", strings.Join(apply, " "), run(t, apply...))
	k.Tuned = kernel(t)
	etc := configuration(t)
	nothingLeft(t, k)

	run(t, apply...)
	same(t, "applied again", k.Tuned, kernel(t))
	same(t, "applied again", etc, configuration(t))

	sh(t, program+" tune rollback")
	same(t, "after rollback", k.Planted, kernel(t))
	same(t, "after rollback", k.Etc, configuration(t))

	run(t, apply...)
	same(t, "applied after a rollback", k.Tuned, kernel(t))
	t.Logf("the files for the next boot:\n%s", sh(t, `for f in /etc/sysctl.d/60-bulkhead.conf \
		/etc/tmpfiles.d/bulkhead.conf /etc/udev/rules.d/90-bulkhead.rules; do echo "$f"; cat $f; done`))
	text, err := json.Marshal(k)
	if err == nil {
		err = os.WriteFile(keptFile, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	sh(t, "/sbin/lvremove -q -y labvg/copy") // its file system has the label of the other
}

// later are the rules whose setting counts when the service, or the server, starts next: they are found until then.
var later = []string{"MEM-36", "OPS-22", "OPS-23", "ZFS-11"}

// nothingLeft holds the host to its advice: what remains above info is in the table of what stays, and nothing that
// tune can set.
func nothingLeft(t *testing.T, k kept) {
	t.Helper()
	stays := map[string]bool{}
	for _, row := range readStays(t) {
		stays[row.Rule] = true
	}
	left := map[string][]string{}
	for _, f := range aboveInfo(advice(t, dsn...)) {
		if !stays[f.Rule] && !slices.Contains(later, f.Rule) {
			t.Errorf("%s is found after all was set, and stays.yaml does not have it: %+v", f.Rule, f)
		}
		// fstab has no line for another mount, or another option is wanted than one that a remount changes.
		elsewhere := f.Change.Class == rule.ClassMount && f.On[0] != "/mnt/odd"
		if k.Settable[f.Rule] && !elsewhere && !slices.Contains(later, f.Rule) {
			t.Errorf("%s is still found after tune set what it can: %+v", f.Rule, f)
		}
		left[f.Change.Class] = append(left[f.Change.Class], f.Rule)
	}
	for _, class := range slices.Sorted(maps.Keys(left)) {
		slices.Sort(left[class])
		t.Logf("left to the person, %s: %s", class, strings.Join(slices.Compact(left[class]), " "))
	}
}

// What tune set is in force after the machine was started anew, by its files alone: no program of bulkhead ran. What
// was planted is given back after that, too.
func TestPlantedFaultsAfterReboot(t *testing.T) {
	inLab(t)
	text, err := os.ReadFile(keptFile)
	var k kept
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		t.Fatal(err)
	}
	var set []api.Tuning
	ask(t, &set, "tune", "status")
	disks := 0
	for _, s := range set {
		switch {
		case s.UntilBoot:
			t.Logf("nothing sets %s at boot", s.Name)
		case s.Overruled != "":
			t.Errorf("%s: %s", s.Name, s.Overruled)
		case !tunable.Same(tunable.Target(s.Name), s.Wanted, s.Holds):
			t.Errorf("%s is %q after the boot, and was set to %q", s.Name, s.Holds, s.Wanted)
		case s.Disk != "":
			disks++
		}
	}
	t.Logf("%d settings are in force after the boot, %d of disks", len(set), disks)
	if disks == 0 {
		t.Error("no setting of a disk is in force after the boot")
	}
	now := kernel(t)
	for _, f := range faults {
		if f.tuned && f.file != "" && now[f.file] != k.Tuned[f.file] {
			t.Errorf("%s: %s is %q after the boot, and was set to %q", f.what, f.file, now[f.file], k.Tuned[f.file])
		}
	}
	if odd := now[oddOptions]; !strings.Contains(odd, "noatime") || !strings.Contains(odd, "nodiscard") ||
		!strings.Contains(odd, "errors=remount-ro") {
		t.Errorf("/mnt/odd is mounted as %s after the boot", odd)
	}
	for _, f := range advice(t).Findings {
		if f.Severity != "info" && (f.Change.Class != rule.ClassMount || f.On[0] == "/mnt/odd") && k.Settable[f.Rule] {
			t.Errorf("%s is found after the boot: %+v", f.Rule, f)
		}
	}

	sh(t, program+" tune rollback")
	now = kernel(t)
	for _, f := range faults {
		if f.tuned && f.file != "" && now[f.file] != k.Planted[f.file] {
			t.Errorf("%s: after rollback %s is %q and was %q", f.what, f.file, now[f.file], k.Planted[f.file])
		}
	}
	for _, option := range []string{"discard", "nobarrier", "errors=continue"} {
		odd := " " + now[oddOptions] + " "
		if !strings.Contains(odd, " "+option+" ") || strings.Contains(odd, "atime") {
			t.Errorf("after rollback /mnt/odd is mounted as %s, without %s", odd, option)
		}
	}
	same(t, "after rollback", k.Etc, configuration(t))
}

// takeAIO takes asynchronous I/O of the kernel, and leaves room for a tenth more.
func takeAIO(t *testing.T) {
	t.Helper()
	var ctx uintptr
	if err := setupAIO(1000, &ctx); err != nil {
		t.Fatal("io_setup:", err)
	}
	t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, ctx, 0, 0) })
	sh(t, `echo $(($(cat /proc/sys/fs/aio-nr) * 10 / 9)) >/proc/sys/fs/aio-max-nr`)
}

// overflow has clients come to a server that accepts nobody.
func overflow(t *testing.T) {
	t.Helper()
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(listener, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	at, err := unix.Getsockname(listener)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(client)
		_ = unix.Connect(client, at) // in progress
	}
	testhost.WaitFor(t, "a connection to be dropped", func() bool {
		out := sh(t, `awk '/^TcpExt:/ && !n { for (i = 1; i <= NF; i++) if ($i == "ListenOverflows") n = i; next }
			/^TcpExt:/ { print $n }' /proc/net/netstat`)
		return strings.TrimSpace(out) != "0"
	})
}
