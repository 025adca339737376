//go:build root

package packaging

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
)

// keptAt outlives the reboot: what TestInitPackage leaves to TestInitPackageAfterReboot.
const keptAt = "/var/lib/bulkhead-test-packaged.json"

type kept struct {
	Files  []string
	Limits map[string]string
}

// newPackaged is a machine whose runlevel is known, as where init runs the scripts: invoke-rc.d, by which packages
// start services, starts none where it is not.
func newPackaged(t *testing.T) *plain {
	t.Helper()
	p := newPlain(t)
	t.Setenv("PREVLEVEL", "N")
	t.Setenv("RUNLEVEL", "2")
	return p
}

// The Debian package on a machine without systemd: the ten commands of docs/start.md, word by word. The machine is left
// so for TestInitPackageAfterReboot.
func TestInitPackage(t *testing.T) {
	p := newPackaged(t)
	k := kept{Files: installedFiles(t)}
	server := p.database()
	k.Limits = started(t, "TestInitPackage", func(i int) {
		if i == 1 {
			p.service("status")
		}
	})
	p.holds("after the ten commands", "mysql3306", server.Process.Pid, k.Limits)
	documented(t, startPage, "TestInitPackage", "The agent", 1, nil)
	documented(t, installPage, "TestInitPackage", "Without systemd", 2, nil)
	p.holds("after the commands of docs/install.md", "mysql3306", server.Process.Pid, k.Limits)
	text, err := json.Marshal(k)
	if err == nil {
		err = os.WriteFile(keptAt, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The machine was started anew, and this machine's first process runs no init scripts: the link of the boot is started
// as it would. A database has its limits from its first connection on, while the package is upgraded and when it is
// removed. A purge lifts them and leaves nothing, and so do the commands of docs/start.md.
func TestInitPackageAfterReboot(t *testing.T) {
	p := newPackaged(t)
	var k kept
	text, err := os.ReadFile(keptAt)
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		t.Fatalf("what TestInitPackage has left: %v", err)
	}
	links, err := filepath.Glob("/etc/rc2.d/S??bulkhead")
	if err != nil || len(links) != 1 {
		t.Fatalf("links for the boot: %q, %v", links, err)
	}
	p.do("sh", "-c", links[0]+" start >/tmp/said 2>&1 </dev/null")
	server := p.database()
	p.holds("its first connection after the reboot", "mysql3306", server.Process.Pid, k.Limits)
	before := p.do("cat", "/run/bulkhead.pid")
	p.do("dpkg", "--install", deb(t, "second"))
	p.holds("the upgrade", "mysql3306", server.Process.Pid, k.Limits)
	p.service("status")
	if now := p.do("cat", "/run/bulkhead.pid"); now == before {
		t.Errorf("the agent is still process %s", now)
	}
	if out := p.do("bulkhead", "version"); !strings.HasPrefix(out, "bulkhead v0.0.2 ") {
		t.Errorf("it is %s", out)
	}
	p.do("bulkhead", "verify")

	out := p.do("dpkg", "--remove", "bulkhead")
	p.holds("the removal", "mysql3306", server.Process.Pid, k.Limits)
	if !strings.Contains(out, "lift them with `sh /var/lib/bulkhead/removed/release`") {
		t.Errorf("the removal says\n%s", out)
	}
	p.do("dpkg", "--purge", "bulkhead")
	p.nothingIsLeft("the purge", server.Process.Pid, k)

	started(t, "TestInitPackage", nil)
	p.holds("installed again", "mysql3306", server.Process.Pid, k.Limits)
	documented(t, startPage, "TestInitPackageAfterReboot", "Taking it back", 2, nil)
	p.nothingIsLeft("the commands of docs/start.md", server.Process.Pid, k)
	if err := os.Remove(keptAt); err != nil {
		t.Error(err)
	}
}

func (p *plain) nothingIsLeft(when string, server int, k kept) {
	p.t.Helper()
	if err := p.held("mysql3306", server, k.Limits); err == nil {
		p.t.Errorf("after %s the limits are in force", when)
	}
	for _, h := range p.tree.Hierarchies() {
		names, err := p.tree.Children(cgroup.Dir{Hierarchy: h.ID, Path: "/"})
		if err != nil {
			p.t.Error(err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, "bulkhead") {
				p.t.Errorf("after %s %s is there in %s", when, name, h.ID)
			}
		}
	}
	for _, left := range []string{"/etc/bulkhead", "/var/lib/bulkhead", "/run/bulkhead", "/run/bulkhead.pid",
		"/var/log/bulkhead.log", "/usr/bin/bulkhead"} {
		if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
			p.t.Errorf("after %s %s is there: %v", when, left, err)
		}
	}
	wantFiles(p.t, k.Files)
}
