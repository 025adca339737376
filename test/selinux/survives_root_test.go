//go:build root

package selinux

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// keptAt outlives the reboot: what TestSoakGoesOn leaves to TestSoakAfterReboot. Its file comes after those of the
// other tests, which want no soak.
const (
	keptAt = "/var/lib/bhs-reboot"
	keptIn = keptAt + "/policy.json"
	oddDir = "/srv/bhreboot"
)

const readsOdd = "create database if not exists bhreboot; create table if not exists bhreboot.odd (a int); " +
	"load data infile '" + oddDir + "/x' into table bhreboot.odd"

// loads has the server read a file that its domain may not read.
func (r *rig) loads() error {
	r.t.Helper()
	out, err := exec.Command("mariadb", "-e", readsOdd).CombinedOutput()
	r.t.Logf("LOAD DATA: %v %s", err, out)
	return err
}

// A soak is begun, something is denied at a checkpoint, and the machine is left so for TestSoakAfterReboot.
func TestSoakGoesOn(t *testing.T) {
	inLab(t)
	if err := os.Mkdir(keptAt, 0o755); err != nil {
		t.Fatal(err)
	}
	r := rigIn(t, keptAt)
	r.write(oddDir+"/x", "1\n")
	r.must("chcon", "-t", "shadow_t", oddDir+"/x")
	r.must("systemctl", "restart", "mariadb")
	data, err := json.Marshal(r.policy())
	if err != nil {
		t.Fatal(err)
	}
	r.write(keptIn, string(data))
	r.enforce()
	if r.loads() == nil {
		t.Fatal("SELinux does not deny it")
	}
	r.soak("begin", "--domain", "mysqld_t", "--reason", "over a reboot")
	r.soak("checkpoint", "load-data")
	if err := r.loads(); err != nil {
		t.Fatal("it is denied though its domain is permissive")
	}
	s := r.soak("status")
	if len(s.Checkpoints) != 2 || s.Checkpoints[1].Denials == 0 {
		t.Fatalf("%+v", s)
	}
	r.write(filepath.Join(keptAt, "denials"), checkpointsOf(s))
}

// checkpointsOf says what was denied at each.
func checkpointsOf(s soaked) string {
	var b strings.Builder
	for _, c := range s.Checkpoints {
		b.WriteString(c.Name + ":")
		for _, g := range c.Groups {
			b.WriteString(" " + g.Rule)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// After a reboot the domain is permissive though the machine enforces, the checkpoints are there with their denials,
// another one has its own, and the end takes all of it back.
func TestSoakAfterReboot(t *testing.T) {
	inLab(t)
	data, err := os.ReadFile(keptIn)
	if err != nil {
		t.Skipf("TestSoakGoesOn has left nothing: %v", err)
	}
	t.Cleanup(func() { _, _ = os.RemoveAll(keptAt), os.RemoveAll(oddDir) })
	var was map[string]string
	if err := json.Unmarshal(data, &was); err != nil {
		t.Fatal(err)
	}
	r := rigIn(t, keptAt)
	r.enforce()
	s := r.soak("status")
	before, err := os.ReadFile(filepath.Join(keptAt, "denials"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Checkpoints); !s.Checkpoints[n-1].Rebooted || n > 1 && s.Checkpoints[0].Rebooted {
		t.Errorf("the boot is not told, or at another checkpoint: %+v", s.Checkpoints)
	}
	if !s.permissive() || !strings.HasPrefix(checkpointsOf(s), strings.TrimSuffix(string(before), "\n")) {
		t.Errorf("after the reboot it is\n%s%+v\nbefore it was\n%s", checkpointsOf(s), s, before)
	}
	time.Sleep(time.Second)
	r.soak("checkpoint", "again")
	if err := r.loads(); err != nil {
		t.Error("after the reboot it is denied")
	}
	s = r.soak("status")
	if n := len(s.Checkpoints); n != 3 || s.Checkpoints[2].Denials == 0 {
		t.Errorf("nothing was denied after the reboot: %+v", s)
	}
	r.does(nil, "selinux", "soak", "status")
	r.does(nil, "selinux", "soak", "end")
	if s = r.soak("status"); slices.ContainsFunc(s.Permissive, func(p permits) bool { return p.Ours }) {
		t.Errorf("it is permissive after the end: %+v", s)
	}
	r.same("after the end", was, r.policy())
	if r.loads() == nil {
		t.Error("SELinux does not deny it after the end")
	}
	r.must("mariadb", "-e", "drop database if exists bhreboot")
}
