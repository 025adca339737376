package advice

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"bulkhead/internal/advise"
	"bulkhead/internal/api"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd/systemdfake"
	"bulkhead/internal/transaction"
)

// anything is a host that has all that settings are kept in.
var anything = settable{has: func(string) bool { return true }, page: 2 << 20,
	room: func(string, int64) error { return nil }}

// What tune sets of a finding is a setting of the kernel with a value; all else is left to the DBA, and said.
func TestTuningOf(t *testing.T) {
	for _, tt := range []struct{ class, key, value, sets, byHand string }{
		{"sysctl", "vm.swappiness", "1", "vm.swappiness = 1", ""},
		{"sysfs", "/sys/kernel/mm/ksm/run", "0", "/sys/kernel/mm/ksm/run = 0", ""},
		{"sysfs", "/sys/no/such*/file", "0", "", "/sys/no/such*/file = 0"},
		{"sysctl", "vm.overcommit_ratio", "", "", "sysctl vm.overcommit_ratio"},
		{"queue", "scheduler", "none", "", "queue/scheduler of the disk = none"},
		{"queue", "scheduler", "none for NVMe", "", "queue/scheduler of the disk = none for NVMe"},
		{"cmdline", "psi", "psi=1", "kernel psi = 1", ""},
		{"cmdline", "elevator", "", "", "take elevator= off the kernel command line"},
		{"advice", "swap", "", "", "no setting, but a decision of yours"},
	} {
		got := tuningOf(advise.Finding{Rule: "X-1",
			Change: advise.Change{Class: tt.class, Key: tt.key, Value: tt.value}}, anything)
		if sets := strings.Join(got.Sets, "; "); sets != tt.sets || got.ByHand != tt.byHand ||
			len(got.Settings) != len(got.Sets) {
			t.Errorf("%s %s: sets %q, by hand %q; want %q, %q", tt.class, tt.key, sets, got.ByHand, tt.sets, tt.byHand)
		}
		var out bytes.Buffer
		got.Title = "What it is"
		printTunings(&out, []tuning{got})
		if text := out.String(); strings.Contains(text, "LEFT TO YOU") != (tt.byHand != "") ||
			!strings.Contains(text, "X-1  What it is\n") ||
			strings.Contains(text, "tune apply") != (tt.sets != "") {
			t.Errorf("%s %s:\n%s", tt.class, tt.key, text)
		}
	}
}

// The pool of huge pages is set as a whole, by node, or at boot.
func TestTuningOfThePool(t *testing.T) {
	const node = "/sys/devices/system/node/node%s/hugepages/hugepages-2048kB/nr_hugepages = %s"
	full := settable{has: anything.has, page: anything.page,
		room: func(pool string, pages int64) error { return fmt.Errorf("%s: no room for %d", pool, pages) }}
	nowhere := settable{atBoot: true, has: func(string) bool { return false }}
	for _, tt := range []struct {
		value        string
		on           settable
		sets, byHand string
	}{
		{"139", anything, "vm.nr_hugepages = 139", ""},
		{"0:512,1:256", anything, fmt.Sprintf(node+"; "+node, "0", "512", "1", "256"), ""},
		{"0:512,1:256", settable{has: anything.has, atBoot: true}, "kernel hugepages = 0:512,1:256", ""},
		{"139", nowhere, "", "add hugepages=139 to the kernel command line, and boot the host"},
		{"", anything, "", "sysctl vm.nr_hugepages"},
		{"139", full, "", "vm.nr_hugepages: no room for 139"},
	} {
		got := tuningOf(advise.Finding{Rule: "MEM-47",
			Change: advise.Change{Class: "sysctl", Key: "vm.nr_hugepages", Value: tt.value}}, tt.on)
		if sets := strings.Join(got.Sets, "; "); sets != tt.sets || got.ByHand != tt.byHand {
			t.Errorf("%q: sets %q, by hand %q; want %q, %q", tt.value, sets, got.ByHand, tt.sets, tt.byHand)
		}
	}
}

// The queue of a disk that a finding names is set.
func TestTuningOfADisk(t *testing.T) {
	got := tuningOf(advise.Finding{Rule: "IO-01",
		Change: advise.Change{Class: "queue", Key: "scheduler", Value: "none", Disk: "cciss/c0d0"}}, anything)
	if sets := strings.Join(got.Sets, "; "); sets != "disk cciss!c0d0/scheduler = none" || got.ByHand != "" {
		t.Errorf("sets %q, by hand %q", sets, got.ByHand)
	}
}

// Options of the mounts that a finding names are set; what no remount changes is left to the DBA.
func TestTuningOfAMount(t *testing.T) {
	for value, sets := range map[string]string{"nodiscard": "mount /a/discard = off; mount /discard = off",
		"data=ordered": "", "hard": "", "": ""} {
		got := tuningOf(advise.Finding{Rule: "FS-01", On: []string{"/a", "/"},
			Change: advise.Change{Class: "mount", Key: value, Value: value}}, anything)
		if text := strings.Join(got.Sets, "; "); text != sets || (got.ByHand == "") != (sets != "") {
			t.Errorf("%s: sets %q, by hand %q; want %q", value, text, got.ByHand, sets)
		}
	}
}

// A mount without a line in fstab is left to the DBA.
func TestTuningOfAMountWithoutALine(t *testing.T) {
	got := tuningOf(advise.Finding{Rule: "FS-01", On: []string{"/a"}, Change: advise.Change{Class: "mount",
		Key: "noatime", Value: "noatime"}}, settable{has: func(name string) bool { return name != "mount /a/atime" }})
	if len(got.Sets) > 0 || got.ByHand == "" {
		t.Errorf("sets %q, by hand %q", got.Sets, got.ByHand)
	}
}

// The service of an instance is set; one that no service runs, and a setting that is not set here, are left to the DBA.
func TestTuningOfAService(t *testing.T) {
	for _, tt := range []struct{ unit, key, sets string }{
		{"mysqld@a.service", "LimitNOFILE", "unit mysqld@a.service/LimitNOFILE = 65535"},
		{"", "LimitNOFILE", ""},
		{"mysqld@a.service", "MemoryMax", ""},
	} {
		got := tuningOf(advise.Finding{Rule: "LIM-01", On: []string{"mysqlA"},
			Change: advise.Change{Class: "unit", Key: tt.key, Value: "65535", Unit: tt.unit}}, anything)
		if sets := strings.Join(got.Sets, "; "); sets != tt.sets || (got.ByHand == "") != (tt.sets != "") {
			t.Errorf("%s %s: sets %q, by hand %q; want %q", tt.unit, tt.key, sets, got.ByHand, tt.sets)
		}
		var out bytes.Buffer
		printTunings(&out, []tuning{got})
		where := cmp.Or(tt.unit, "the service that runs it")
		if text := out.String(); !strings.Contains(text, "  on      mysqlA\n") ||
			tt.sets == "" && !strings.Contains(text, "  change  "+tt.key+" = 65535 in "+where+"\n") {
			t.Errorf("%s %s:\n%s", tt.unit, tt.key, text)
		}
	}
}

// The status says what differs, what was before, and who wins at boot.
func TestPrintTuned(t *testing.T) {
	var out bytes.Buffer
	printTuned(&out, []api.Tuning{
		{Name: "vm.swappiness", Wanted: "1", Holds: "1", Before: "60", From: "tune apply MEM-01"},
		{Name: "vm.x", Wanted: "1", From: "host.tune, p.yaml:3", Overruled: "line 2 of /etc/sysctl.d/99-a.conf sets 9"},
		{Name: "unit db.service/LimitNOFILE", Wanted: "9", From: "host.tune", Unit: true, Running: "1:2",
			Overruled: "line 2 of /x/99-a.conf sets 5"},
		{Name: "mount /a/atime", Wanted: "noatime", From: "host.tune", Running: "relatime"},
		{Name: "kernel psi", Wanted: "1", Holds: "1", From: "host.tune", Waits: true},
	})
	want := `vm.swappiness = 1
  by       tune apply MEM-01
  before   60
vm.x = 1
  DIFFERS  it is not in this kernel
  by       host.tune, p.yaml:3
  at boot  line 2 of /etc/sysctl.d/99-a.conf sets 9, after bulkhead's file: take that line out
unit db.service/LimitNOFILE = 9
  DIFFERS  it is not in the drop-in of the service
  by       host.tune
  DIFFERS  the running process has 1:2
  at start line 2 of /x/99-a.conf sets 5, after bulkhead's file: take that line out
mount /a/atime = noatime
  DIFFERS  it is not in /etc/fstab or the mount unit
  by       host.tune
  DIFFERS  it is mounted with relatime
kernel psi = 1
  by       host.tune
  waits    for a reboot
`
	if out.String() != want {
		t.Errorf("it says\n%s", out.String())
	}
}

// The verbs of tune ask servers as advise does.
func TestTuneTakesLogins(t *testing.T) {
	for _, verb := range []string{"plan", "apply"} {
		c := TuneCommand(Session{Flags: func(*cobra.Command) func(string) api.Request { return nil }})
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetArgs([]string{verb, "--severity", "info", "--dsn", "mysql3306=mysql://app:geheim@localhost/"})
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "everybody sees on a command line") {
			t.Errorf("tune %s: %v", verb, err)
		}
	}
}

// What apply has to say is said where there is nothing to set, too, and stdout holds one answer.
func TestFollow(t *testing.T) {
	left := tuning{Rule: "FS-01", ByHand: "option of the mount: noatime"}
	set := tuning{Rule: "MEM-01", Settings: []state.Tuned{{Rule: "MEM-01", Name: "vm.swappiness", Value: "1"}}}
	for _, tt := range []struct {
		all             []tuning
		names           []string
		stdout, changed string // a part of what is printed; of the rules that are followed
		stderr          string
	}{
		{nil, nil, "nothing to do", "", ""},
		{[]tuning{left}, nil, "nothing to do", "", ""},
		{nil, []string{"MEM-01"}, "MEM-01: nothing to set", "", ""},
		{[]tuning{set, left}, nil, "", "MEM-01", ""},
		{[]tuning{set}, []string{"MEM-01", "MEM-02"}, "", "MEM-01", "MEM-02: nothing to set"},
	} {
		var out, stderr bytes.Buffer
		var changed string
		s := Session{Out: &out,
			Print: func(v any, text func()) error {
				if _, err := json.Marshal(v); err != nil {
					t.Error(err)
				}
				text()
				return nil
			},
			Change: func(_ *cobra.Command, q api.Request) error {
				for _, t := range q.Tune {
					changed += t.Rule
				}
				return nil
			}}
		c := &cobra.Command{}
		c.SetErr(&stderr)
		err := s.follow(c, api.Request{}, tt.all, tt.names, s.Change)
		if err != nil || changed != tt.changed || !strings.Contains(out.String(), tt.stdout) ||
			(out.Len() == 0) != (tt.stdout == "") || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("%v of %v: %v, changes by %q, says %q and %q", tt.names, tt.all, err, changed, &out, &stderr)
		}
	}
	if err := (Session{}).follow(&cobra.Command{}, api.Request{}, []tuning{left}, []string{"FS-01"}, nil); err == nil {
		t.Error("what is left to a person was asked for by name, and not refused")
	}
}

// asking is tune on a host that was captured, with a systemd that answers, and what it says to stderr.
func asking(t *testing.T) (tune func(args ...string) (all []tuning, said string), pid1 *systemdfake.Manager) {
	t.Helper()
	more, err := os.ReadFile("../../advise/gather/testdata/tuned.txtar")
	if err != nil {
		t.Fatal(err)
	}
	root := linuxtest.Unpack(t, linuxtest.Text(t, "storage/dbhost")+string(more))
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "run/systemd/system"), 0o755),
		os.WriteFile(filepath.Join(root, "proc/sys/vm/swappiness"), []byte("60\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	pid1 = systemdfake.New(t, systemdfake.Options{})
	return func(args ...string) (all []tuning, said string) {
		var out bytes.Buffer
		s := Session{Out: &out, Look: func() (*transaction.Controller, error) {
			c, err := transaction.Open(transaction.Options{NoState: true, Root: root})
			if err == nil {
				c.Bus = pid1.Options()
			}
			return c, err
		}, Print: func(v any, text func()) error {
			all, _ = v.([]tuning)
			text()
			return nil
		}, Flags: func(*cobra.Command) func(string) api.Request {
			return func(verb string) api.Request { return api.Request{Verb: verb} }
		}, Change: func(_ *cobra.Command, q api.Request) error {
			for _, set := range q.Tune {
				all = append(all, tuning{Rule: set.Rule})
			}
			return nil
		}}
		c := TuneCommand(s)
		c.SetArgs(args)
		c.SetErr(&out)
		c.SetOut(&out)
		if err := c.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return all, out.String()
	}, pid1
}

// tune looks at all that advise looks at: units of systemd, too. Names of rules are read in letters of either case, and
// of one that cannot be decided that is said.
func TestTunePlanLooksAsAdvise(t *testing.T) {
	tune, pid1 := asking(t)
	all, _ := tune("plan")
	if !slices.ContainsFunc(pid1.Calls(), func(c systemdfake.Call) bool {
		return strings.HasSuffix(c.Path, "/postgresql_2eservice")
	}) {
		t.Errorf("systemd was not asked for the service of the databases: %+v", pid1.Calls())
	}
	at := slices.IndexFunc(all, func(one tuning) bool { return one.ByHand == "" })
	if at < 0 {
		t.Fatalf("nothing to set: %+v", all)
	}
	lower := strings.ToLower(all[at].Rule)
	if named, said := tune("plan", lower); len(named) == 0 || named[0].Rule != all[at].Rule {
		t.Errorf("%s: %+v\n%s", lower, named, said)
	}
	if set, said := tune("apply", lower); len(set) == 0 || strings.Contains(said, "nothing") {
		t.Errorf("%s: %+v\n%s", lower, set, said)
	}
	if _, said := tune("plan", "OPS-05"); !strings.Contains(said, "not decided: OPS-05  ") {
		t.Errorf("of what cannot be decided it says\n%s", said)
	}
}
