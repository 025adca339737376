package control

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/state"
)

// documentNames is every document there is, by file name.
func documentNames() []string {
	names := []string{journal.VersionName(1)}
	for _, d := range state.Table {
		names = append(names, d.Name)
	}
	return names
}

// fill has every document there, those that nothing has written empty.
func (m *machine) fill() {
	m.t.Helper()
	lock, err := m.Lock(m.t.Context(), "test", "test")
	m.must(err)
	defer lock.Release()
	for _, d := range state.Table {
		var there json.RawMessage
		found, err := m.Store.Load(d.Name, &there)
		m.must(err)
		if !found {
			m.must(m.Store.Save(d.Name, d.Content(&state.Documents{})))
		}
	}
}

// A document whose bytes have changed, whose content makes no sense, or that is gone blocks neither apply nor
// release: it is put aside, and a release gives all of it back.
func TestDamagedDocumentBlocksNothing(t *testing.T) {
	t.Parallel()
	for _, name := range documentNames() {
		for how, spoil := range map[string]func(m *machine, file string){
			"flipped": func(m *machine, file string) {
				text, err := os.ReadFile(file)
				m.must(err)
				text[len(text)/2] ^= 1
				m.must(os.WriteFile(file, text, 0o600))
			},
			"missing": func(m *machine, file string) { m.must(os.Remove(file)) },
			"of another type": func(m *machine, _ string) {
				lock, err := m.Lock(m.t.Context(), "test", "test")
				m.must(err)
				defer lock.Release()
				m.must(m.Store.Save(name, "no such thing"))
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, "252.39")
				m.service("db.service", "/usr/sbin/mysqld", "TasksMax=321", "MemoryMax=2147483648")
				m.start("/usr/bin/backup all")
				before := m.state()
				m.apply(appAndJobs)
				m.reads("applied", dbDir, "memory.max", gib)
				m.fill()
				file := filepath.Join(m.Store.Dir(), name+".json")
				spoil(m, file)
				m.reopened(-1)
				m.apply(appAndJobs)
				m.reads("applied again", dbDir, "memory.max", gib)
				stays := how == "missing" || strings.HasPrefix(name, "policy-")
				if aside, err := filepath.Glob(file + ".damaged-*"); err != nil || (len(aside) == 0) != stays {
					t.Errorf("put aside: %v, %v", aside, err)
				}
				m.fill()
				if _, err := os.Stat(file); err == nil {
					spoil(m, file)
				}
				m.reopened(-1)
				m.release()
				if after := m.state(); after != before {
					t.Errorf("after release:\n%s", differs(after, before))
				}
			})
		}
	}
}

// spoilers are what may lie under the name of a file in the state directory.
var spoilers = []struct {
	name  string
	spoil func(file string) error
}{
	{"missing", os.Remove},
	{"empty", func(file string) error { return os.Truncate(file, 0) }},
	{"truncated", func(file string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.Truncate(file, info.Size()/2)
	}},
	{"flipped", func(file string) error {
		text, err := os.ReadFile(file)
		if err != nil || len(text) == 0 {
			return err
		}
		text[len(text)/2] ^= 1
		return os.WriteFile(file, text, 0o600)
	}},
	{"directory", instead(func(file string) error { return os.MkdirAll(filepath.Join(file, "full"), 0o700) })},
	{"FIFO", instead(func(file string) error { return unix.Mkfifo(file, 0o600) })},
	{"socket", instead(func(file string) error {
		// The address of a socket is at most 107 bytes long.
		dir, err := os.MkdirTemp("", "s")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		l, err := net.Listen("unix", filepath.Join(dir, "s"))
		if err != nil {
			return err
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		return errors.Join(l.Close(), os.Rename(filepath.Join(dir, "s"), file))
	})},
	{"link to itself", instead(func(file string) error { return os.Symlink(filepath.Base(file), file) })},
	{"link outside", instead(func(file string) error { return os.Symlink("/etc/passwd", file) })},
	{"dangling link", instead(func(file string) error { return os.Symlink("/nowhere/at/all", file) })},
	{"sparse", func(file string) error { return os.Truncate(file, 1<<30) }},
	{"device", instead(func(file string) error {
		return unix.Mknod(file, unix.S_IFCHR|0o600, int(unix.Mkdev(5, 0))) // /dev/tty, reads of which wait
	})},
	{"other owner", func(file string) error { return os.Chown(file, 65534, 65534) }},
}

func instead(make func(file string) error) func(string) error {
	return func(file string) error { return errors.Join(os.RemoveAll(file), make(file)) }
}

// within fails when something takes longer than it may.
func (m *machine) within(d time.Duration, what string, do func()) {
	m.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(d):
		m.t.Fatalf("%s hangs", what)
	}
}

// Whatever lies in the state directory: no verb hangs or takes memory without bound, apply works, and a release gives
// all of the host back.
func TestWhateverLiesInTheStateDirectory(t *testing.T) {
	t.Parallel()
	names := []string{"journal.log", "history.log", "lock"}
	for _, name := range documentNames() {
		names = append(names, name+".json")
	}
	for i, how := range spoilers {
		t.Run(how.name, func(t *testing.T) {
			if (how.name == "other owner" || how.name == "device") && os.Geteuid() != 0 {
				t.Skip("only root gives files away and makes devices")
			}
			m := newMachine(t, "252.39")
			m.service("db.service", "/usr/sbin/mysqld", "TasksMax=321", "MemoryMax=2147483648")
			m.start("/usr/bin/backup all")
			before := m.state()
			for j, name := range names {
				if os.Getenv("FAULTS") != "all" && (i+j)%5 != 0 { // one in five
					continue
				}
				m.spoilAndRelease(name, how.spoil, before)
			}
		})
	}
}

func (m *machine) spoilAndRelease(name string, spoil func(file string) error, before string) {
	m.t.Helper()
	file := filepath.Join(m.Store.Dir(), name)
	m.apply(appAndJobs)
	m.fill()
	if strings.HasPrefix(name, "policy-") {
		d, err := state.Load(m.Store)
		m.must(err)
		file = filepath.Join(m.Store.Dir(), journal.VersionName(d.Applied.Revision)+".json")
	}
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	for _, r := range []api.Request{
		{Verb: "status"}, {Verb: "agent"}, {Verb: "apply", Sources: m.policy(appAndJobs)}, {Verb: "release", All: true},
	} {
		if _, err := os.Lstat(file); err == nil && r.Verb != "apply" {
			m.must(m.Controller.Close())
			m.must(spoil(file))
		}
		m.within(30*time.Second, r.Verb+" with "+name, func() {
			m.reopened(-1)
			switch r.Verb {
			case "status":
				_, _ = inspect.Status(m.t.Context(), m.Reconciler.Controller) // it may say that a document is damaged
			case "agent":
				m.Agent = m.Self
				_, _ = m.full() // so may its first look
			default:
				if reply, err := m.do(r); err != nil {
					m.t.Errorf("%s: %s: %v, %+v", name, r.Verb, err, reply)
				}
			}
		})
		if r.Verb == "apply" {
			m.fill()
		}
	}
	runtime.ReadMemStats(&is)
	if took := is.TotalAlloc - was.TotalAlloc; took > 512<<20 {
		m.t.Errorf("%s: %d MiB were allocated", name, took>>20)
	}
	if after := m.state(); after != before {
		m.t.Fatalf("%s: after release:\n%s", name, differs(after, before))
	}
}
