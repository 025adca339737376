package loaded_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/verdict"
)

const captured = `
-- sys/fs/selinux/enforce --
0
-- etc/selinux/config --
# what is enforced
SELINUX=permissive
SELINUXTYPE=targeted
-- etc/selinux/targeted/contexts/files/file_contexts --
/.*	system_u:object_r:default_t:s0
/var/lib/mysql(/.*)?	system_u:object_r:mysqld_db_t:s0
/proc/.*	<<none>>
-- etc/selinux/targeted/contexts/files/file_contexts.local --
/data(/.*)?	system_u:object_r:mysqld_db_t:s0
-- etc/selinux/targeted/contexts/files/file_contexts.subs --
/fast /data
-- usr/bin/sst --
#!/bin/sh
ss -p
-- usr/bin/link --
symlink: /usr/bin/sst
`

// host is a captured host with the policy of package policydb's tests.
func host(t *testing.T) string {
	t.Helper()
	dir := linuxtest.Unpack(t, captured)
	text, err := os.ReadFile("../policydb/testdata/small.hex")
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "sys/fs/selinux/policy"), data)
	return dir
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A verdict comes from the policy that is loaded and from the file contexts of the host.
func TestVerdictOfTheHost(t *testing.T) {
	h := loaded.Of(sysroot.New(host(t)))
	if h.State != "permissive" || h.Policy != "the loaded policy, version 33" || len(h.Missing) > 0 {
		t.Fatalf("%+v", h)
	}
	log := &avc.Log{}
	line := "avc: denied { %s } for pid=7 comm=\"mysqld\" %s scontext=system_u:system_r:mysqld_t:s0 " +
		"tcontext=system_u:object_r:%s:s0 tclass=%s\n"
	text := fmt.Sprintf(line, "read write", `path="/fast/a.ibd"`, "tmp_t", "file") +
		fmt.Sprintf(line, "name_bind", "src=4444", "kerberos_port_t", "tcp_socket") +
		fmt.Sprintf(line, "read", `name="x"`, "nfs_t", "file") +
		fmt.Sprintf(line, "open", `path="/var/lib/mysql/a"`, "mysqld_db_t", "file")
	if err := log.Read(strings.NewReader(text), log.LastLoad()); err != nil {
		t.Fatal(err)
	}
	want := map[verdict.Kind]string{verdict.Label: "restorecon -v /fast/a.ibd",
		verdict.Port:    "semanage port -m -t mysqld_port_t -p tcp 4444",
		verdict.Boolean: "setsebool -P use_nfs on", verdict.Stale: "nothing: leave these lines out"}
	for _, v := range verdict.Judge(log, h.Ask).Verdicts {
		if len(v.Fix) != 1 || v.Fix[0] != want[v.Kind] {
			t.Errorf("%+v", v)
		}
		delete(want, v.Kind)
	}
	if len(want) > 0 {
		t.Errorf("no verdict %v", want)
	}
}

func TestFiles(t *testing.T) {
	f := loaded.Of(sysroot.New(host(t))).Ask.Files
	if _, known := f.Expected("/proc/1", "dir"); known {
		t.Error("<<none>> is a label")
	}
	if kind, known := f.Actual("/usr/bin/sst"); known {
		t.Errorf("a captured host has label %q", kind)
	}
	if text, err := f.Read("/usr/bin/link"); err != nil || !strings.HasPrefix(string(text), "#!/bin/sh\nss") {
		t.Errorf("%q, %v", text, err)
	}
	for _, path := range []string{"/usr/bin", "/nowhere"} {
		if _, err := f.Read(path); err == nil {
			t.Errorf("%s is read", path)
		}
	}
}

// What is not there is said, and nothing stands in for it.
func TestMissing(t *testing.T) {
	for name, c := range map[string]struct {
		file, text, state, missing string
	}{
		"no SELinux":   {"sys/fs/selinux/policy", "", "none", "this kernel has loaded none"},
		"a bad policy": {"sys/fs/selinux/policy", "x", "permissive", "it cannot be read: this is no policy"},
		"no mode":      {"sys/fs/selinux/enforce", "", "not told", ""},
		"enforcing":    {"sys/fs/selinux/enforce", "1\n", "enforcing", ""},
		"no store":     {"etc/selinux/config", "", "permissive", "there is no policy store"},
		"a bad store":  {"etc/selinux/config", "SELINUXTYPE=../x\n", "permissive", "there is no policy store"},
		"no contexts": {"etc/selinux/targeted/contexts/files/file_contexts", "", "permissive",
			"/etc/selinux/targeted/contexts/files/file_contexts is not there"},
	} {
		dir := host(t)
		if c.text == "" {
			if err := os.Remove(filepath.Join(dir, c.file)); err != nil {
				t.Fatal(err)
			}
		} else {
			write(t, filepath.Join(dir, c.file), []byte(c.text))
		}
		h := loaded.Of(sysroot.New(dir))
		said := strings.Join(h.Missing, "\n")
		if h.State != c.state || !strings.Contains(said, c.missing) || (said == "") != (c.missing == "") {
			t.Errorf("%s: %+v", name, h)
		}
		if c.missing != "" && (h.Ask.Policy != nil) == (h.Ask.Files != nil) {
			t.Errorf("%s: one of the two is there, not %v", name, h.Ask)
		}
	}
	if h := loaded.None(); h.Ask != (verdict.Host{}) || len(h.Missing) == 0 {
		t.Errorf("%+v", h)
	}
}
