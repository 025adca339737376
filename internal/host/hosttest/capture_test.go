package hosttest_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
)

func TestCaptureRoundTrip(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/", "hybrid", "centos7", "fournodes", "debian12", "container"} {
		t.Run(name, func(t *testing.T) {
			h := host.New("/")
			if name != "/" {
				h = hosttest.Load(t, name)
			}
			var archive bytes.Buffer
			if err := hosttest.Capture(h, &archive); err != nil {
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
			list, err := copied.Proc.Processes(procfs.Options{})
			if err != nil && !errors.Is(err, procfs.ErrHidden) {
				t.Fatal(err)
			}
			if len(list) == 0 && name != "fournodes" {
				t.Error("no process was captured")
			}
			if name == "/" { // others come and go: compare what stays
				self := slices.IndexFunc(list, func(p procfs.Process) bool { return p.PID == os.Getpid() })
				if self < 0 || list[self].Exe != exe {
					t.Error("this process is not in the captured host as it is")
				}
				return
			}
			whole, err := h.Proc.Processes(procfs.Options{})
			if err != nil && !errors.Is(err, procfs.ErrHidden) {
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
	dir := linuxtest.Unpack(t, linuxtest.Text(t, "debian12"))
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
		if err := hosttest.Capture(host.New(dir), &archive); err != nil {
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
