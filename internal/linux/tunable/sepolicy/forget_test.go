package sepolicy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/sepolicy"
)

// The kernel forgets what it has decided on, unless somebody is about to change a boolean: that would be done, too.
func TestForget(t *testing.T) {
	p := newPolicy(t)
	const commit = "sys/fs/selinux/commit_pending_bools"
	p.Put("sys/fs/selinux/booleans/other", "0 1")
	if err := p.host().Forget(); err == nil || !strings.Contains(err.Error(), "about to change the boolean other") ||
		p.Text(commit) != "" {
		t.Errorf("with a boolean that waits: %v, %q", err, p.Text(commit))
	}
	p.Put("sys/fs/selinux/booleans/other", "1 1")
	if err := p.host().Forget(); err != nil || p.Text(commit) != "1" {
		t.Errorf("%v, %q", err, p.Text(commit))
	}
	if err := (sepolicy.Host{Root: sysroot.New(t.TempDir()), Dir: t.TempDir()}).Forget(); err == nil {
		t.Error("a kernel without SELinux forgets")
	}
	if err := (sepolicy.Host{Root: sysroot.New(p.dir)}).Forget(); !errors.Is(err, change.ErrCaptured) {
		t.Errorf("a captured host: %v", err)
	}
}

// The names of settings tell which domain they make permissive and where they change labels; rules are read as they
// are written.
func TestNames(t *testing.T) {
	if d := sepolicy.PermissiveIn(sepolicy.PermissiveName("mysqld_t")); d != "mysqld_t" ||
		sepolicy.PermissiveIn("selinux module bulkhead_mysqld_t") != "" {
		t.Errorf("permissive is %q", d)
	}
	for name, want := range map[string]string{"selinux context /srv/db": "/srv/db", "selinux labels /srv/a": "/srv/a",
		"selinux port tcp/1": "", "vm.swappiness": ""} {
		if got := sepolicy.LabelledBy(name); got != want {
			t.Errorf("%s changes labels at %q", name, got)
		}
	}
	all := sepolicy.Rules(sepolicy.Rule("a_t", "a_t", "process", []string{"getattr", "setpgid"}) + " " +
		sepolicy.Rule("a_t", "b_t", "file", []string{"read"}))
	if len(all) != 2 || all[0].Target != "self" || !slices.Equal(all[0].Permissions, []string{"getattr", "setpgid"}) ||
		all[1].Source != "a_t" || all[1].Target != "b_t" || all[1].Class != "file" {
		t.Errorf("%+v", all)
	}
	if all := sepolicy.Rules(sepolicy.Permissive("a_t")); len(all) > 0 {
		t.Errorf("a permissive domain has the rules %+v", all)
	}
}
