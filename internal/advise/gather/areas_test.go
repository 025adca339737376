package gather

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
)

// A file that does not answer costs its own area alone, and the report says which.
func TestAreaThatHangs(t *testing.T) {
	for name, note := range map[string]string{
		"etc/fstab":              "mounts were not looked at",
		"proc/sys/vm/swappiness": "settings of the kernel were not looked at",
	} {
		t.Run(note, func(t *testing.T) {
			t.Parallel()
			h := tuned(t, nil)
			dir, err := h.Root.Tree()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir.Name(), name)
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(file, 0o600); err != nil {
				t.Fatal(err)
			}
			set := Facts(t.Context(), h, Options{})
			if f, err := os.OpenFile(file, os.O_WRONLY, 0); err == nil { // whoever waits for it goes on
				_ = f.Close()
			}
			if len(set.Notes) != 1 || !strings.Contains(set.Notes[0], note) {
				t.Errorf("notes %q", set.Notes)
			}
			mounts, kernel := len(set.Mounts) > 0, set.Host.Get("host.swappiness").Is == int64(1)
			if mounts == kernel { // one of them hangs
				t.Errorf("mounts are known: %t; settings of the kernel: %t", mounts, kernel)
			}
			if len(set.Instances) != 4 || len(set.Disks) == 0 || set.Host.Get("host.buffers_together").Is == int64(0) {
				t.Errorf("the rest is gone: %d instances, %d disks", len(set.Instances), len(set.Disks))
			}
		})
	}
}

// A server that does not answer, or refuses, costs its own time; what its files say is known then.
func TestServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	logins := map[string]*dblogin.Login{}
	for name, dsn := range map[string]string{
		"mysql3306":      fmt.Sprintf("mysql://u:geheim@%s/", l.Addr()),
		"postgresql5432": "postgres://u:geheim@127.0.0.1:1/db",
		"redis9":         "redis://127.0.0.1:1",
	} {
		if logins[name], err = dblogin.Parse(dsn); err != nil {
			t.Fatal(err)
		}
	}
	set := Facts(t.Context(), tuned(t, nil), Options{Logins: logins})
	notes := strings.Join(set.Notes, "\n")
	for _, want := range []string{"mysql3306 was not asked for its settings: no answer within 3s",
		"postgresql5432 was not asked for its settings:", `no instance "redis9" runs here`} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes lack %q:\n%s", want, notes)
		}
	}
	if strings.Contains(notes, "geheim") {
		t.Errorf("notes show the password:\n%s", notes)
	}
	for _, o := range set.Instances {
		v := o.Values.Get("instance.connections")
		if o.Name == "mysql3306" && (v.Is != int64(500) || !strings.HasPrefix(v.From, "/etc/mysql/my.cnf:")) {
			t.Errorf("%s: %+v", o.Name, v)
		}
	}
}

// Who is asked by the policy: the instance that listens where a data source name leads, on this host.
func TestLoginsOfPolicy(t *testing.T) {
	for dsn, want := range map[string]bool{"mysql://u@localhost:3306/": true, "mysql://u@127.0.0.1/": true,
		"mysql://u@localhost/?socket=/run/my.sock": true, "mysql://u@db2:3306/": false, "redis://localhost:3306": false,
		"mysql://u@localhost:3307/": false} {
		l, err := dblogin.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		inst := engine.Instance{Engine: engine.MySQL, Port: 3306, Socket: "/run/my.sock"}
		if got := (Options{Known: []*dblogin.Login{l}}).login(inst) != nil; got != want {
			t.Errorf("%s: %v", dsn, got)
		}
		inst.Container = true // its port may be another one's
		if (Options{Known: []*dblogin.Login{l}}).login(inst) != nil {
			t.Errorf("%s asks an instance of a container", dsn)
		}
	}
}

func TestReservedPorts(t *testing.T) {
	h := capturedWith(t, map[string]string{"proc/sys/net/ipv4/ip_local_reserved_ports": "8080,33060-33062\n"})
	for port, want := range map[int64]bool{8080: true, 33060: true, 33062: true, 33063: false, 3306: false} {
		if v := portReserved(h, port); v.Is != want {
			t.Errorf("%d: %+v", port, v)
		}
	}
	none := capturedWith(t, map[string]string{"proc/sys/net/ipv4/ip_local_reserved_ports": "\n"})
	if v := portReserved(none, 1); v.Is != false {
		t.Errorf("none is reserved: %+v", v)
	}
}

func TestMachines(t *testing.T) {
	for _, c := range []struct {
		files          map[string]string
		virtual, cloud string
	}{
		{map[string]string{"sys_vendor": "Amazon EC2", "product_name": "m7i.large"}, "kvm", "aws"},
		{map[string]string{"sys_vendor": "Amazon EC2", "product_name": "m7i.metal"}, "", "aws"},
		{map[string]string{"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine",
			"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "hyperv", "azure"},
		{map[string]string{"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "kvm", "gcp"},
		{map[string]string{"sys_vendor": "VMware, Inc."}, "vmware", ""},
		{map[string]string{"sys_vendor": "Dell Inc.", "product_name": "PowerEdge R640"}, "", ""},
	} {
		files := map[string]string{"proc/cpuinfo": "processor\t: 0\nflags\t: fpu\n"}
		for name, text := range c.files {
			files["sys/class/dmi/id/"+name] = text + "\n"
		}
		v := fact.Values{}
		virtualFacts(capturedWith(t, files), v)
		if v.Get("host.virtual").Is != c.virtual || v.Get("host.cloud").Is != c.cloud {
			t.Errorf("%v: %+v", c.files, v)
		}
	}
	v := fact.Values{}
	virtualFacts(capturedWith(t, map[string]string{"proc/cpuinfo": "processor\t: 0\nflags\t: fpu hypervisor\n"}), v)
	if v.Get("host.virtual").Is != "other" {
		t.Errorf("a guest without firmware: %+v", v)
	}
}

func TestLogind(t *testing.T) {
	const dir = "etc/systemd/logind.conf"
	for _, c := range []struct {
		files map[string]string
		want  any
	}{
		{map[string]string{"run/systemd/system/x": ""}, true},
		{map[string]string{"run/systemd/system/x": "", dir: "[Login]\nRemoveIPC=no\n"}, false},
		{map[string]string{"run/systemd/system/x": "", dir: "RemoveIPC=no\n", dir + ".d/9.conf": "RemoveIPC=yes\n"},
			true},
		{nil, false},
	} {
		if v := removesIPC(host.New(linuxtest.Unpack(t, archive(c.files)))); v.Is != c.want {
			t.Errorf("%v: %+v", c.files, v)
		}
	}
}

func archive(files map[string]string) string {
	var b strings.Builder
	b.WriteString("-- etc/hostname --\nx\n")
	for name, text := range files {
		fmt.Fprintf(&b, "-- %s --\n%s", name, text)
	}
	return b.String()
}

// An area that was read while another one was waited for is not late.
func TestAreaReadInTime(t *testing.T) {
	a := start(time.Nanosecond, func() int { return 7 })
	for len(a.done) == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(time.Millisecond) // both are there
	for range 50 {
		if n, ok := a.wait(t.Context()); !ok || n != 7 {
			t.Fatalf("%d, %v", n, ok)
		}
		a.done <- 7
	}
}

// What the group of an instance has of huge pages, where the kernel tells it.
func TestTransparent(t *testing.T) {
	const stat = "sys/fs/cgroup/db.slice/postgresql.service/memory.stat"
	for text, want := range map[string]any{"anon 5\nanon_thp 4194304\n": int64(4194304), "anon 5\n": nil} {
		set := Facts(t.Context(), tuned(t, map[string]string{stat: text}), Options{})
		for _, o := range set.Instances {
			if v := o.Values.Get("instance.transparent"); o.Name == "postgresql5432" && v.Is != want {
				t.Errorf("%q: %+v", text, v)
			}
		}
	}
}

// The release of the kernel is known where much else is not, and no control groups are not groups of v1.
func TestLittleIsKnown(t *testing.T) {
	h := tuned(t, map[string]string{"proc/sys/kernel/random/boot_id": "+"})
	dir, err := h.Root.Tree()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir.Name(), "proc/sys/kernel/random/boot_id")); err != nil {
		t.Fatal(err)
	}
	set := Facts(t.Context(), h, Options{})
	if v := set.Host.Get("host.kernel"); v.Is != "6.12.9-amd64" {
		t.Errorf("without a boot_id the kernel is %+v", v)
	}
	bare := tuned(t, map[string]string{"proc/self/mountinfo": "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"})
	if v := Facts(t.Context(), bare, Options{}).Host.Get("host.cgroups"); v.Unknown == "" {
		t.Errorf("where no control groups are mounted they are %+v", v)
	}
}

// Where systemd tells of MemoryTHP, the services of databases have it, and the host's value stays.
func TestTransparentOfUnits(t *testing.T) {
	changes := map[string]string{"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n"}
	for _, unit := range []string{"mysql3306", "postgresql"} {
		changes["units/"+unit+".service"] = "+MemoryTHP=inherit\n"
	}
	list, rep := found(t, tuned(t, changes))
	var got []string
	for _, f := range rep.Findings {
		if f.Rule == "MEM-12" {
			got = append(got, fmt.Sprint(f.On, f.Change.Class, f.Change.Unit, f.Change.Key, f.Change.Value))
		}
	}
	slices.Sort(got)
	if want := []string{"[mysql3306]unitmysql3306.serviceMemoryTHPdisable",
		"[postgresql5432]unitpostgresql.serviceMemoryTHPdisable"}; !slices.Equal(got, want) {
		t.Errorf("%q, of all %q", got, list)
	}
}

// All times grow with that of an area.
func TestWait(t *testing.T) {
	for _, c := range []struct{ wait, area, ask, unit time.Duration }{
		{0, 5 * time.Second, 3 * time.Second, 2 * time.Second},
		{50 * time.Second, 50 * time.Second, 30 * time.Second, 20 * time.Second},
		{time.Second, time.Second, 600 * time.Millisecond, 400 * time.Millisecond},
	} {
		o := Options{Wait: c.wait}
		if area, ask, unit := o.in(AreaTime), o.in(settings.AskTime), o.in(unitTime); area != c.area || ask != c.ask ||
			unit != c.unit {
			t.Errorf("%s: %s, %s and %s", c.wait, area, ask, unit)
		}
	}
}
