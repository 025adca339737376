//go:build root

package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/bench/database"
	children "bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/scenario"
)

// openDir is a directory that servers of other users enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "bh-memory-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// install makes a server that does not run yet, with a buffer of so many MiB.
func install(t *testing.T, n *children.Supervisor, dir, kind string, buffer int) *database.Instance {
	t.Helper()
	paths, err := children.Find(database.Engines[kind].Programs)
	if err != nil {
		t.Fatal(err)
	}
	in, err := database.NewInstance(scenario.Database{Name: kind, Engine: kind}, dir, buffer, paths, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Kind.Install(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Stop() })
	return in
}

// instanceOf finds the server among those of the host.
func instanceOf(t *testing.T, h *host.Host, in *database.Instance) engine.Instance {
	t.Helper()
	all, err := Instances(h)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(i engine.Instance) bool { return i.Main.PID == in.PID() })
	if at < 0 {
		t.Fatalf("process %d is not among %+v", in.PID(), all)
	}
	return all[at]
}

// What is said of the shared memory of a PostgreSQL is what it needs: it starts in a pool of just as many pages, and
// not in one of 3 % fewer, with whatever settings.
func TestNeededRoot(t *testing.T) {
	const most = 400
	if !pool(t, most) {
		t.Skip("this kernel gives no huge pages now")
	}
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	n := children.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	in := install(t, n, openDir(t), "postgresql", 32)
	begin := func(settings ...string) error {
		return in.Start(t.Context(), func(user string, args []string) []string {
			return slices.Concat([]string{"setpriv", "--reuid", user, "--regid", user, "--init-groups"}, args, settings)
		})
	}
	random := rand.New(rand.NewPCG(24, 0))
	for range 20 {
		settings := []string{
			"-c", fmt.Sprintf("shared_buffers=%dkB", 1024+random.IntN(600<<10)),
			"-c", fmt.Sprintf("max_connections=%d", 10+random.IntN(400)),
			"-c", fmt.Sprintf("wal_buffers=%dkB", 64+random.IntN(16<<10)), "-c"}
		if err := begin(append(settings, "huge_pages=off")...); err != nil {
			t.Fatalf("%v: %v", settings, err)
		}
		i, err := Read(t.Context(), h, facts, "madvise", instanceOf(t, h, in))
		if err != nil {
			t.Fatal(err)
		}
		_ = in.Stop()
		if i.Needed == 0 || i.Needed > most {
			t.Fatalf("%v: %d pages are said to be needed", settings, i.Needed)
		}
		setPool(t, i.Needed)
		if err := begin(append(settings, "huge_pages=on")...); err != nil {
			t.Errorf("%v: %d pages are too few: %v", settings, i.Needed, err)
		}
		_ = in.Stop()
		setPool(t, i.Needed-max(1, i.Needed*3/100))
		if err := begin(append(settings, "huge_pages=on")...); err == nil {
			t.Errorf("%v: %d pages are more than it needs", settings, i.Needed)
		}
		_ = in.Stop()
	}
}

// Real servers with pages of 2 MiB are seen to use them, by their maps and by their own word; and what asks for them in
// vain is told. Redis has no such setting.
func TestLiveServersRoot(t *testing.T) {
	if !pool(t, 128) {
		t.Skip("this kernel gives no huge pages now")
	}
	n := children.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	dir := openDir(t)
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	const buffer = 64
	for _, c := range []struct {
		kind, dsn string
		more      []string
		huge      bool
		said      Said
	}{
		{"mariadb", "mysql://root@localhost/?socket=%[1]s", []string{"--large-pages=ON"}, true,
			Said{Setting: "large_pages", Value: "true"}},
		{"postgresql", "postgres://postgres@localhost:%[2]d/postgres?host=%[3]s", []string{"-c", "huge_pages=on"}, true,
			Said{Setting: "huge_pages", Value: "on"}},
		{"redis", "unix://%[1]s", nil, false, Said{}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			in := install(t, n, dir, c.kind, buffer)
			if err := in.Start(t.Context(), func(user string, args []string) []string {
				as := []string{"setpriv", "--reuid", user, "--regid", user, "--init-groups"}
				return slices.Concat(as, args, c.more)
			}); err != nil {
				t.Fatal(err)
			}
			inst := instanceOf(t, h, in)
			i, err := Read(t.Context(), h, facts, "madvise", inst)
			if err != nil {
				t.Fatal(err)
			}
			login, err := dblogin.Parse(fmt.Sprintf(c.dsn, in.Socket, in.Port, filepath.Dir(in.Socket)))
			if err != nil {
				t.Fatal(err)
			}
			said, trouble := SaidBy(context.Background(), h, inst, login)
			if trouble != nil {
				t.Error(trouble)
			}
			if c.said.Setting != "" && !slices.ContainsFunc(said, func(s Said) bool {
				return s.Setting == c.said.Setting && s.Value == c.said.Value && strings.Contains(s.From, "the server")
			}) {
				t.Errorf("it says %+v, want %+v from the server", said, c.said)
			}
			huge := slices.ContainsFunc(i.Pages, func(p Pages) bool {
				return p.Size == hugePage && p.Mapped >= buffer*mib && p.Shared+p.Private > 0
			})
			if huge != c.huge {
				t.Errorf("huge pages are used: %v, want %v: %+v", huge, c.huge, i.Pages)
			}
			if w := i.Contradicts(said); w != "" {
				t.Errorf("its maps and its word disagree: %s", w)
			}
			s, err := Summarize(h, facts, "madvise", inst)
			if err != nil || s.PageTables == 0 || (s.Pool > 0) != c.huge {
				t.Errorf("its status: %+v, %v", s, err)
			}
		})
	}
}
