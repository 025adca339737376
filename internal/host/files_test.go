package host_test

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
)

func TestEvaluate(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := hosttest.FromArchive(t, `
-- srv/db/data/ibdata1 --
x
-- srv/link --
symlink: db/data
-- var/absolute --
symlink: /srv/link
-- var/up --
symlink: ../../../../srv/db
-- var/dangling --
symlink: /nowhere
-- var/loop --
symlink: /var/loop
-- var/out --
symlink: `+outside+`
`)
	for name, want := range map[string]string{
		"/srv/db/data":             "/srv/db/data",
		"/srv/./db//data/../data/": "/srv/db/data",
		"/srv/link":                "/srv/db/data",
		"/srv/link/..":             "/srv/db", // of what the link leads to, as the kernel has it
		"/var/absolute/ibdata1":    "/srv/db/data/ibdata1",
		"/var/up/data":             "/srv/db/data", // nothing is above the root
		"/../../srv":               "/srv",
		"/":                        "/",
	} {
		if got, err := h.Root.Evaluate(name); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]error{
		"/nowhere": fs.ErrNotExist, "/var/dangling": fs.ErrNotExist, "/var/out": fs.ErrNotExist, "/var/loop": syscall.ELOOP,
	} {
		if got, err := h.Root.Evaluate(name); !errors.Is(err, want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s gives %q, %v, want %v", name, got, err, want)
		}
	}
	if got, err := h.Root.Evaluate("srv/db"); err == nil {
		t.Errorf("a relative path gives %q", got)
	}
}

func TestEvaluateOnThisMachine(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "real"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	got, err := host.New("/").Root.Evaluate(filepath.Join(dir, "link"))
	if want := filepath.Join(dir, "real"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestNothingOutsideTheRootIsRead(t *testing.T) {
	dir := hosttest.Unpack(t, hosttest.Text(t, "hybrid"))
	outside := filepath.Join(t.TempDir(), "osrelease")
	if err := os.WriteFile(outside, []byte("9.9.9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "proc/sys/kernel/osrelease")
	relative, err := filepath.Rel(filepath.Dir(file), outside)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{outside, relative} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, file); err != nil {
			t.Fatal(err)
		}
		if f, err := host.New(dir).Facts(); err == nil {
			t.Errorf("a link to %s was followed: kernel %s", target, f.Kernel)
		}
	}
}

func TestProcRootFile(t *testing.T) {
	dir := hosttest.Unpack(t, `
-- proc/7/stat --
7 (db) S 1
-- proc/7/root --
symlink: /var/lib/containers/db
-- proc/7/cwd --
symlink: /var/lib/containers/db/home
-- proc/8/stat --
8 (other) S 1
-- proc/8/cwd --
symlink: /etc
-- etc/my.cnf --
outer
-- var/lib/containers/db/etc/my.cnf --
symlink: /etc/mysql/my.cnf
-- var/lib/containers/db/etc/mysql/my.cnf --
inner
-- var/lib/containers/db/home/local.cnf --
local
-- var/lib/containers/db/up.cnf --
symlink: ../../../../../etc/my.cnf
`)
	h := host.New(dir)
	for _, test := range []struct {
		pid        int
		name, want string
	}{
		{7, "/etc/my.cnf", "inner\n"}, // an absolute link counts from the process's root
		{7, "/up.cnf", "inner\n"},     // and nothing leads above it
		{7, "local.cnf", "local\n"},
		{7, "../etc/my.cnf", "inner\n"},
		{8, "/etc/my.cnf", "outer\n"},
		{8, "my.cnf", "outer\n"},
	} {
		got, err := h.Proc.ProcRootFile(test.pid, test.name, 100)
		if err != nil || string(got) != test.want {
			t.Errorf("process %d, %s: %q, %v, want %q", test.pid, test.name, got, err, test.want)
		}
	}
	if _, err := h.Proc.ProcRootFile(8, "/etc/my.cnf", 6); err != nil {
		t.Errorf("exactly at the limit: %v", err)
	}
	if got, err := h.Proc.ProcRootFile(8, "/etc/my.cnf", 5); err == nil {
		t.Errorf("one byte over the limit gives %q", got)
	}
	if _, err := h.Proc.ProcRootFile(8, "/etc/none", 5); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/etc/none") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestProcRootFileOpensRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil { // opening it would wait for a writer
		t.Fatal(err)
	}
	for _, name := range []string{pipe, dir, "/dev/zero"} {
		if got, err := host.New("/").Proc.ProcRootFile(os.Getpid(), name, 100); err == nil {
			t.Errorf("%s gives %q", name, got)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := host.New("/").Proc.ProcRootFile(os.Getpid(), file, 100); err != nil || string(got) != "text" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestListenersOfFixture(t *testing.T) {
	got, err := hosttest.Load(t, "debian12").Sockets.Listeners([]int{900, 2001, 77777})
	want := map[int][]host.Listener{
		900: {
			{Network: "tcp", Address: "127.0.0.1:5432", Port: 5432},
			{Network: "tcp", Address: "[::1]:5432", Port: 5432},
			{Network: "unix", Address: "/var/run/postgresql/.s.PGSQL.5432"},
		},
		2001: {{Network: "tcp", Address: "0.0.0.0:3306", Port: 3306}}, // of a network namespace of its own
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v\nwant %v", got, err, want)
	}
}

func TestListenersOfThisProcess(t *testing.T) {
	dir, err := os.MkdirTemp("", "sock") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var want []host.Listener
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("listen on %s: %v", address, err) // a host without IPv6
			continue
		}
		defer l.Close()
		want = append(want, host.Listener{Network: "tcp", Address: l.Addr().String(), Port: l.Addr().(*net.TCPAddr).Port})
	}
	socket := filepath.Join(dir, "a b.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want = append(want, host.Listener{Network: "unix", Address: socket})
	all, err := host.New("/").Sockets.Listeners([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	got := all[os.Getpid()]
	for _, l := range want {
		if !slices.Contains(got, l) {
			t.Errorf("%+v is not among %+v", l, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestOpenFiles(t *testing.T) {
	got, err := hosttest.Load(t, "debian12").Proc.OpenFiles(900)
	if want := []string{"/dev/null", "/tmp/old", "/var/log/postgresql/postgresql-15-main.log"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestUserNames(t *testing.T) {
	h := hosttest.Load(t, "debian12")
	for uid, want := range map[int]string{0: "root", 112: "postgres", 4242: "4242"} {
		if got := h.Users.UserName(uid); got != want {
			t.Errorf("user %d is %q, want %q", uid, got, want)
		}
	}
	for gid, want := range map[int]string{113: "ssl-cert", 4242: "4242"} {
		if got := h.Users.GroupName(gid); got != want {
			t.Errorf("group %d is %q, want %q", gid, got, want)
		}
	}
	for name, want := range map[string]int{"postgres": 112, "admin": 0, "4242": 4242, "0": 0} {
		if got, found := h.Users.UserID(name); !found || got != want {
			t.Errorf("user %q is %d, %t, want %d", name, got, found, want)
		}
	}
	for _, name := range []string{"nobodyhere", "", "-1", "broken", "+nisuser", "4294967296"} {
		if got, found := h.Users.UserID(name); found {
			t.Errorf("user %q is %d", name, got)
		}
	}
	if got, found := h.Users.GroupID("ssl-cert"); !found || got != 113 {
		t.Errorf("group ssl-cert is %d, %t", got, found)
	}
	if got := hosttest.Load(t, "container").Users.UserName(0); got != "0" {
		t.Errorf("without /etc/passwd user 0 is %q", got)
	}
}

func TestUserNamesOfThisMachine(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	h := host.New("/")
	uid, err := strconv.Atoi(me.Uid)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Users.UserName(uid); got != me.Username {
		t.Errorf("user %d is %q, want %q", uid, got, me.Username)
	}
	if got, found := h.Users.UserID(me.Username); !found || got != uid {
		t.Errorf("user %q is %d, %t, want %d", me.Username, got, found, uid)
	}
}

func TestCaptureRoundTrip(t *testing.T) {
	for _, name := range append([]string{"/"}, fixtures...) {
		t.Run(name, func(t *testing.T) {
			h := host.New("/")
			if name != "/" {
				h = hosttest.Load(t, name)
			}
			var archive bytes.Buffer
			if err := h.Capture(&archive); err != nil {
				t.Fatal(err)
			}
			copied := hosttest.FromArchive(t, archive.String())
			want, err := h.Facts()
			if err != nil {
				t.Fatal(err)
			}
			got, err := copied.Facts()
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
			}
			list, err := copied.Proc.Processes(host.ProcessOptions{})
			if err != nil && !errors.Is(err, host.ErrHidden) {
				t.Fatal(err)
			}
			if len(list) == 0 && name != "fournodes" {
				t.Error("no process was captured")
			}
			if name == "/" { // others come and go: compare what stays
				self := slices.IndexFunc(list, func(p host.Process) bool { return p.PID == os.Getpid() })
				if self < 0 || list[self].Exe != live(t, os.Getpid()).Exe {
					t.Error("this process is not in the captured host as it is")
				}
				return
			}
			whole, err := h.Proc.Processes(host.ProcessOptions{})
			if err != nil && !errors.Is(err, host.ErrHidden) {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(list, whole) {
				t.Errorf("got  %+v\nwant %+v", list, whole)
			}
		})
	}
}

func TestCaptureLeavesSecretsOut(t *testing.T) {
	const secret = "hunter2"
	dir := hosttest.Unpack(t, hosttest.Text(t, "debian12"))
	write := func(file string, words ...string) {
		t.Helper()
		text := strings.Join(words, "\x00") + "\x00"
		if err := os.WriteFile(filepath.Join(dir, "proc/900", file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("environ", "PGPASSWORD="+secret)
	for _, args := range [][]string{
		{"mysql", "-p" + secret, "-P", "3307"},
		{"/usr/bin/mysqldump", "--password=" + secret, "--port=3307"},
		{"mysql", "--password=" + secret + " with blank " + secret},
		{"mysql", "-p123456"}, // the secret below is not in it: numbers count here
		{"pg_dump", "-p", "3307", "postgresql://user:" + secret + "@db/x"},
		{"redis-server", "--requirepass", secret, "--port", "3307"},
		{"redis-cli", "-a", secret, "-p", "3307"},
		{"sh", "-c", "PGPASSWORD=" + secret + " pg_dump -p 3307; mysql -u x -p" + secret},
		{"sh", "-c", `PASS='a ` + secret + `' x`},
		{"tool", `{"API_TOKEN": "a ` + secret + `", "port": 3307}`},
		{"app", "--auth-token", secret},
	} {
		write("cmdline", args...)
		var archive bytes.Buffer
		if err := host.New(dir).Capture(&archive); err != nil {
			t.Fatal(err)
		}
		for _, hidden := range []string{secret, "123456"} {
			if line := lineWith(archive.String(), `\0`, hidden); line != "" {
				t.Errorf("%q leaves %s", args, line)
			}
		}
		if strings.Contains(strings.Join(args, " "), "3307") && lineWith(archive.String(), `\0`, "3307") == "" {
			t.Errorf("%q: the port is masked too", args)
		}
	}
}

// lineWith returns the first line that holds all the parts.
func lineWith(text string, parts ...string) string {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			return line
		}
	}
	return ""
}
