package service_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/ownfile"
	"bulkhead/internal/linux/tunable/service"
)

// units is a systemd with a main process of db.service.
type units int

func (units) Reload(context.Context, ...string) error { return nil }

func (u units) MainPID(_ context.Context, unit string) (int, error) {
	if unit != "db.service" {
		return 0, nil
	}
	return int(u), nil
}

func (units) Version(context.Context) (int, error) { return 260, nil }

// old is a systemd before it had MemoryTHP.
type old struct{ units }

func (old) Version(context.Context) (int, error) { return 259, nil }

func put(t *testing.T, dir, file, text string) {
	t.Helper()
	at := filepath.Join(dir, file)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newHost(t *testing.T) service.Host {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, "run/systemd/system/.keep", "")
	put(t, dir, "usr/lib/systemd/system/db.service", "[Service]\n")
	put(t, dir, "usr/lib/systemd/system/mysql@.service", "[Service]\n")
	set := func(pid, resource int, soft, hard uint64) error {
		if resource != unix.RLIMIT_MEMLOCK {
			return fmt.Errorf("limit %d was set", resource)
		}
		put(t, dir, fmt.Sprintf("proc/%d/limits", pid),
			strings.ReplaceAll(fmt.Sprintf("Max locked memory         %-20d %-20d bytes\n", soft, hard),
				"18446744073709551615", "unlimited"))
		return nil
	}
	if err := set(7, unix.RLIMIT_MEMLOCK, 8<<20, 8<<20); err != nil {
		t.Fatal(err)
	}
	return service.Host{Root: sysroot.New(dir), Dir: dir, Systemd: units(7), SetLimit: set}
}

func TestConformance(t *testing.T) {
	h := newHost(t)
	for _, tt := range []conformance.Case{
		{Target: service.Target("db.service/LimitNOFILE"), Values: []string{"65535", "1024"}, Refused: "infinity",
			Gone: "none.service/LimitNOFILE"},
		{Target: service.Target("mysql@a.service/OOMScoreAdjust"), Values: []string{"-600", "0"}, Refused: "1001"},
		{Target: service.Target("db.service/MemoryTHP"), Values: []string{"madvise", "disable"}, Refused: "never",
			Gone: "none.service/MemoryTHP"},
		{Target: change.Target{Kind: service.KindLimit, Addr: "db.service/LimitMEMLOCK"},
			Values: []string{"64M", "1:2", "infinity"}, Refused: "much", Gone: "none.service/LimitMEMLOCK"},
	} {
		tt.Actuator = h.Actuators()[tt.Target.Kind]
		t.Run(tt.Target.Addr, func(t *testing.T) { conformance.Run(t, tt) })
	}
}

// What is no setting of a service is refused, with what it takes.
func TestCheck(t *testing.T) {
	for addr, value := range map[string]string{
		"db.service/LimitNOFILE": "0", "db.service/Nice": "1", "db.slice/LimitNOFILE": "1", "LimitNOFILE": "1",
		"../x.service/LimitNOFILE": "1", "db.service/OOMScoreAdjust": "-1001", "db.service/TimeoutSec": "1 min",
		"db@.service/LimitNOFILE": "1", "db.service/LimitMEMLOCK": "64MB",
	} {
		if err := service.Check(addr, value); err == nil {
			t.Errorf("%s = %s is taken", addr, value)
		}
	}
	for addr, value := range map[string]string{
		"db.service/LimitNOFILE": "65535", "db@1.service/LimitMEMLOCK": "64M", "db.service/TimeoutSec": "15min",
		`a\x2db.service/LimitNPROC`: "infinity", "db.service/ManagedOOMPreference": "omit",
	} {
		if err := service.Check(addr, value); err != nil {
			t.Error(err)
		}
	}
}

// The way in to the host, and bulkhead itself, keep the score that their units give them: the error says why.
func TestScoreOfTheWayIn(t *testing.T) {
	for unit, why := range map[string]string{
		"ssh.service": "no way in", "sshd.service": "no way in", "sshd@0-192.0.2.1:22.service": "no way in",
		"ssh@1.service": "no way in", "bulkhead.service": "bulkhead itself",
	} {
		if err := service.Check(unit+"/OOMScoreAdjust", "500"); err == nil || !strings.Contains(err.Error(), why) ||
			!strings.HasPrefix(err.Error(), "OOMScoreAdjust of "+unit) {
			t.Errorf("%s: %v", unit, err)
		}
		if err := service.Check(unit+"/LimitNOFILE", "65535"); err != nil {
			t.Error(err)
		}
	}
	if err := service.Check("sshguard.service/OOMScoreAdjust", "500"); err != nil {
		t.Error(err)
	}
}

// Without systemd there is nothing to set, and nothing is written.
func TestWithoutSystemd(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "etc/systemd/system/db.service", "[Service]\n")
	h := service.Host{Root: sysroot.New(dir), Dir: dir}
	for kind, a := range h.Actuators() {
		if _, err := a.Read(t.Context(), "db.service/LimitNOFILE"); err == nil ||
			!strings.Contains(err.Error(), "no systemd runs here") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	a := h.Actuators()[service.KindSetting]
	if _, err := a.Read(t.Context(), "db.service/MemoryTHP"); !errors.Is(err, change.ErrGone) {
		t.Errorf("MemoryTHP: %v", err)
	}
}

// silent is a systemd that does not answer.
type silent struct{ units }

func (silent) Version(context.Context) (int, error) { return 0, errors.New("no answer") }

// Where systemd does not answer nothing new is written that it may not know, and what was written is taken away.
func TestSilentSystemd(t *testing.T) {
	h := newHost(t)
	target := service.Target("db.service/MemoryTHP")
	if err := change.Set(t.Context(), service.Settings{Host: h}, target, "madvise"); err != nil {
		t.Fatal(err)
	}
	h.Systemd = silent{}
	s := service.Settings{Host: h}
	for range 2 { // the second finds nothing to do
		if _, err := s.Undo(t.Context(), change.Of(target, "", "madvise")); err != nil {
			t.Error(err)
		}
	}
	if got, err := s.Read(t.Context(), target.Addr); got != "" || err != nil {
		t.Errorf("after its undo it is %q, %v", got, err)
	}
	if err := s.Write(t.Context(), target.Addr, "madvise"); err == nil {
		t.Error("it is written without an answer")
	}
}

// A systemd that would read over a setting has none of it: nothing is written. A line that is there goes all the same.
func TestOlderSystemd(t *testing.T) {
	h := newHost(t)
	target := service.Target("db.service/MemoryTHP")
	if err := change.Set(t.Context(), service.Settings{Host: h}, target, "madvise"); err != nil {
		t.Fatal(err)
	}
	h.Systemd = old{}
	s := service.Settings{Host: h}
	if got, err := s.Read(t.Context(), target.Addr); got != "madvise" || err != nil {
		t.Errorf("the line of before: %q, %v", got, err)
	}
	if err := change.Set(t.Context(), s, target, ""); err != nil {
		t.Error(err)
	}
	const want = "systemd 259 has no MemoryTHP, which came with 260"
	if _, err := s.Read(t.Context(), target.Addr); !errors.Is(err, change.ErrGone) || err.Error() != want {
		t.Errorf("read: %v", err)
	}
	if err := s.Write(t.Context(), target.Addr, "madvise"); err == nil || err.Error() != want {
		t.Errorf("written: %v", err)
	}
	if _, err := os.Stat(filepath.Join(h.Dir, service.File("db.service"))); err == nil {
		t.Error("there is a drop-in")
	}
	if err := s.Write(t.Context(), "db.service/LimitNOFILE", "1024"); err != nil {
		t.Error(err)
	}
}

// A drop-in that somebody edited is one value whole, is kept aside by what is written, and comes back by an undo.
func TestEdited(t *testing.T) {
	h := newHost(t)
	a := h.Actuators()[service.KindSetting]
	file := filepath.Join(h.Dir, service.File("db.service"))
	const edited = "[Service]\nLimitNOFILE=7\n"
	put(t, h.Dir, service.File("db.service"), edited)
	for _, key := range []string{"LimitNOFILE", "TimeoutSec"} {
		if got, err := a.Read(t.Context(), "db.service/"+key); err != nil || got != ownfile.AsLeft+edited {
			t.Errorf("%s is %q, %v", key, got, err)
		}
	}
	c := change.Of(service.Target("db.service/LimitNOFILE"), ownfile.AsLeft+edited, "65535")
	if err := change.Set(t.Context(), a, c.Target, c.New); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file + ownfile.Edited); err != nil || string(text) != edited {
		t.Errorf("kept aside: %q, %v", text, err)
	}
	if _, err := a.Undo(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != edited {
		t.Errorf("undone: %q, %v", text, err)
	}
}

// Of drop-ins the last by name counts, in whichever directory; a file hides those of its name.
func TestOverruled(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"none":   {map[string]string{"etc/systemd/system/db-a.service.d/50-x.conf": "LimitNOFILE=1"}, ""},
		"later":  {map[string]string{"run/systemd/system/db-a.service.d/99-x.conf": "#\nLimitNOFILE = 1"}, "line 3"},
		"prefix": {map[string]string{"usr/lib/systemd/system/db-.service.d/99-x.conf": "LimitNOFILE=1"}, "db-.serv"},
		"all":    {map[string]string{"usr/lib/systemd/system/service.d/99-x.conf": "LimitNOFILE=1"}, "/service.d"},
		"agrees": {map[string]string{"etc/systemd/system/db-a.service.d/99-x.conf": "LimitNOFILE=65535"}, ""},
		"agrees by another word": {map[string]string{
			"etc/systemd/system/db-a.service.d/99-x.conf": "LimitNOFILE=65535:65535"}, ""},
		"reset":   {map[string]string{"etc/systemd/system/db-a.service.d/99-x.conf": "LimitNOFILE="}, "the default"},
		"another": {map[string]string{"etc/systemd/system/db-a.service.d/99-x.conf": "LimitNOFILESoft=1"}, ""},
		"hidden": {map[string]string{"usr/lib/systemd/system/db-a.service.d/99-x.conf": "LimitNOFILE=1",
			"etc/systemd/system/db-a.service.d/99-x.conf": ""}, ""},
		"the last": {map[string]string{"usr/lib/systemd/system/db-a.service.d/99-x.conf": "LimitNOFILE=1",
			"etc/systemd/system/db-a.service.d/98-x.conf": "LimitNOFILE=2"}, "sets 1"},
	} {
		dir, by := t.TempDir(), map[change.Target]string{}
		for file, text := range tt.files {
			put(t, dir, file, "[Service]\n"+text+"\n")
		}
		target := service.Target("db-a.service/LimitNOFILE")
		service.Overruled(sysroot.New(dir), map[change.Target]string{target: "65535"}, by)
		if got := by[target]; (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A unit that is gone, as one of systemd-run is after a boot, does not keep its drop-in from going, too.
func TestUnitThatIsGone(t *testing.T) {
	h := newHost(t)
	s, target := service.Settings{Host: h}, service.Target("db.service/LimitNOFILE")
	if err := change.Set(t.Context(), s, target, "1024"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(h.Dir, "usr/lib/systemd/system/db.service")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing left to take away
		if err := change.Set(t.Context(), s, target, ""); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(h.Dir, service.File("db.service"))); err == nil {
		t.Error("the drop-in is still there")
	}
}
