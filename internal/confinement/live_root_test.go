//go:build root

package confinement_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/bench/database"
	children "bulkhead/internal/bench/process"
	"bulkhead/internal/confinement"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/host"
	"bulkhead/internal/selinux/check"
	"bulkhead/internal/testhost/release"
)

// Real servers of a test, in a directory below /srv, which nothing confines: each is held against the domain that it
// belongs in, and the kernel says of each finding what it says.
func TestLiveServersRoot(t *testing.T) {
	h := host.New("/")
	r := look(t, h, confinement.Options{})
	_, err := os.Stat("/sys/fs/selinux/policy")
	if on := r.SELinux.Mode != confinement.Off && r.SELinux.Mode != confinement.NotThere; on != (err == nil) {
		t.Fatalf("SELinux is %q; the kernel's policy: %v", r.SELinux.Mode, err)
	}
	if err != nil {
		t.Skip("SELinux is not on here; a machine with a policy runs this test")
	}
	if len(r.NotAsked) > 0 || r.Audit.Status == nil {
		t.Errorf("not asked: %q, audit %+v", r.NotAsked, r.Audit)
	}
	n := children.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	dir, err := os.MkdirTemp("/srv", "bulkhead-check-") // servers of other users enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	logins, names := map[string]*dblogin.Login{}, map[string]*database.Instance{}
	for kind, prefix := range map[string]string{"mariadb": "mysql", "postgresql": "postgresql", "redis": "redis"} {
		d, paths := release.Database(t, kind)
		in, err := database.NewInstance(d, dir, 32, paths, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Kind.Install(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if err := in.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Stop() })
		names[fmt.Sprint(prefix, in.Port)] = in
		if kind == "mariadb" {
			if logins[fmt.Sprint(prefix, in.Port)], err = dblogin.Parse("mysql://root@localhost/?socket=" +
				in.Socket); err != nil {
				t.Fatal(err)
			}
		}
	}
	r = look(t, h, confinement.Options{Logins: logins})
	for name, in := range names {
		t.Run(strings.TrimRight(name, "0123456789"), func(t *testing.T) {
			at := slices.IndexFunc(r.Instances, func(i confinement.Instance) bool { return i.Name == name })
			if at < 0 {
				t.Fatalf("%s is not among %d instances", name, len(r.Instances))
			}
			i := r.Instances[at]
			t.Logf("%+v", i)
			found := slices.DeleteFunc(slices.Clone(r.Findings),
				func(f check.Finding) bool { return f.Instance != name })
			if i.SELinux == nil || i.SELinux.Domain == "" || !has(found, check.Domain) || len(i.SELinux.Undecided) > 0 {
				t.Fatalf("its domain: %+v", i)
			}
			if !slices.ContainsFunc(found, func(f check.Finding) bool {
				return f.About == check.Label && f.Want != "" && strings.HasPrefix(in.DataDir+"/", f.Path+"/")
			}) || !has(found, check.PortType) {
				t.Errorf("its data directory %s and port: %+v", in.DataDir, found)
			}
			for _, f := range found {
				agrees(t, i.SELinux.Domain, f)
			}
		})
	}
}

func has(all []check.Finding, about string) bool {
	return slices.ContainsFunc(all, func(f check.Finding) bool { return f.About == about })
}

// agrees asks the kernel: it denies the type that a finding names, and allows the one that it wants.
func agrees(t *testing.T, domain string, f check.Finding) {
	t.Helper()
	if !f.Denied || f.Class == "dir" && !slices.Contains(f.Missing, "search") {
		return // of a directory, it may be about what would be in it
	}
	for _, p := range f.Missing {
		if kernel(t, domain, f.Has, f.Class, p) {
			t.Errorf("the kernel allows %s %s:%s %s: %+v", domain, f.Has, f.Class, p, f)
		}
		if f.Want != "" && f.Boolean == "" && !kernel(t, domain, f.Want, f.Class, p) {
			t.Errorf("the kernel denies %s %s:%s %s: %+v", domain, f.Want, f.Class, p, f)
		}
	}
}

// kernel asks /sys/fs/selinux/access as security_compute_av(3) does.
func kernel(t *testing.T, domain, target, class, permission string) bool {
	t.Helper()
	number := func(name string) int {
		text, err := os.ReadFile("/sys/fs/selinux/class/" + class + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	bit := uint64(1) << (number("perms/"+permission) - 1)
	f, err := os.OpenFile("/sys/fs/selinux/access", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "system_u:system_r:%s:s0 system_u:object_r:%s:s0 %d %x", domain, target,
		number("index"), bit); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	n, err := f.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	allowed, _, _ := strings.Cut(string(buf[:n]), " ")
	got, err := strconv.ParseUint(allowed, 16, 64)
	if err != nil {
		t.Fatalf("the kernel answered %q", buf[:n])
	}
	return got&bit != 0
}
