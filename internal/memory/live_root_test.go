//go:build root

package memory

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/advise/gather/hugepages"
	"bulkhead/internal/bench/database"
	children "bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/testhost/release"
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
	d, paths := release.Database(t, kind)
	in, err := database.NewInstance(d, dir, buffer, paths, n)
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
	all, err := recognise.OfHost(h)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(i engine.Instance) bool { return i.Main.PID == in.PID() })
	if at < 0 {
		t.Fatalf("process %d is not among %+v", in.PID(), all)
	}
	return all[at]
}

// settingsTried is how many random settings of each engine are tried.
func settingsTried() int {
	if os.Getenv("LONG") != "" {
		return 20
	}
	return 2
}

// sizer starts servers with settings and says what they take of the pool.
type sizer struct {
	host  *host.Host
	facts *host.Facts
	in    *database.Instance
}

func newSizer(t *testing.T, kind string) *sizer {
	t.Helper()
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	n := children.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	return &sizer{h, facts, install(t, n, openDir(t), kind, 32)}
}

func (s *sizer) start(t *testing.T, args ...string) error {
	t.Helper()
	return s.in.Start(t.Context(), func(user string, own []string) []string {
		return slices.Concat([]string{"setpriv", "--reuid", user, "--regid", user, "--init-groups"}, own, args)
	})
}

// need is what the server that runs takes, as its files and arguments say.
func (s *sizer) need(t *testing.T) hugepages.Need {
	t.Helper()
	inst := instanceOf(t, s.host, s.in)
	set, trouble := SettingsOf(t.Context(), s.host, inst, nil)
	n := hugepages.Of(s.host, s.facts, inst, set)
	if trouble != nil || n.Unknown != "" {
		t.Fatalf("%v, %+v", trouble, n)
	}
	return n
}

// What is said of the shared memory of a PostgreSQL is what it needs: it starts in a pool of just as many pages, and
// not in one of 3 % fewer, with whatever settings.
func TestSizePostgresRoot(t *testing.T) {
	const most = 140
	if !onlyPool(t, most) {
		t.Skip("this kernel gives no huge pages now, or has a pool")
	}
	s := newSizer(t, "postgresql")
	random := rand.New(rand.NewPCG(24, 0))
	for range settingsTried() {
		settings := []string{
			"-c", fmt.Sprintf("shared_buffers=%dkB", 1024+random.IntN(200<<10)),
			"-c", fmt.Sprintf("max_connections=%d", 10+random.IntN(400)),
			"-c", fmt.Sprintf("wal_buffers=%dkB", 64+random.IntN(16<<10)), "-c"}
		if err := s.start(t, append(settings, "huge_pages=off")...); err != nil {
			t.Fatalf("%v: %v", settings, err)
		}
		n := s.need(t)
		_ = s.in.Stop()
		if n.Told || n.Pages == 0 || n.Pages > most {
			t.Fatalf("%v: %+v", settings, n)
		}
		setPool(t, n.Pages)
		if err := s.start(t, append(settings, "huge_pages=on")...); err != nil {
			t.Errorf("%v: %d pages are too few: %v", settings, n.Pages, err)
		} else if again := s.need(t); !again.Told || again.Pages != n.Pages || again.Holds != n.Pages {
			t.Errorf("%v: %+v with huge pages, %+v without", settings, again, n)
		}
		_ = s.in.Stop()
		setPool(t, n.Pages-max(1, n.Pages*3/100))
		if err := s.start(t, append(settings, "huge_pages=on")...); err == nil {
			t.Errorf("%v: %d pages are more than it needs", settings, n.Pages)
		}
		_ = s.in.Stop()
	}
}

// In a pool of just the pages that are said of a MariaDB, or of a MySQL, which has no Aria, all that it asks for lies
// in them, and 3 % of them are free at most, with whatever settings: it has no more in a pool of twice the size.
func TestSizeMariaDBRoot(t *testing.T) {
	const most = 240
	if !onlyPool(t, 2*most) {
		t.Skip("this kernel gives no huge pages now, or has a pool")
	}
	s := newSizer(t, "mariadb")
	random := rand.New(rand.NewPCG(24, 1))
	unused := 0.0
	for range settingsTried() {
		settings := []string{
			fmt.Sprintf("--innodb-buffer-pool-size=%dM", 100+random.IntN(100)),
			fmt.Sprintf("--key-buffer-size=%dk", 50<<10+random.IntN(40<<10)),
			fmt.Sprintf("--loose-aria-pagecache-buffer-size=%dk", 50<<10+random.IntN(40<<10)),
			fmt.Sprintf("--innodb-log-buffer-size=%dk", 2<<10+random.IntN(30<<10)), "--large-pages=ON"}
		setPool(t, 0)
		if err := s.start(t, settings...); err != nil {
			t.Fatalf("%v: %v", settings, err)
		}
		n := s.need(t)
		_ = s.in.Stop()
		if !n.Told || n.Holds != 0 || n.Pages == 0 || n.Pages > most {
			t.Fatalf("%v: %+v", settings, n)
		}
		setPool(t, n.Pages)
		if err := s.start(t, settings...); err != nil {
			t.Fatalf("%v: %v", settings, err)
		}
		again := s.need(t)
		_ = s.in.Stop()
		setPool(t, 2*n.Pages)
		if err := s.start(t, settings...); err != nil {
			t.Fatalf("%v: %v", settings, err)
		}
		if more := s.need(t); more.Holds > n.Pages {
			t.Errorf("%v: %d pages are too few: it has %d of them, and %d of more", settings, n.Pages, again.Holds,
				more.Holds)
		}
		_ = s.in.Stop()
		if again.Pages != n.Pages || again.Holds > n.Pages {
			t.Errorf("%v: %+v in the pool, %+v before", settings, again, n)
		}
		idle := n.Pages - again.Holds
		unused = max(unused, 100*float64(idle)/float64(n.Pages))
		if idle*100 > n.Pages*3 {
			t.Errorf("%v: it has %d of %d pages that it is said to take: %v", settings, again.Holds, n.Pages, n.Inputs)
		}
		setPool(t, n.Pages*97/100-1)
		if err := s.start(t, settings...); err != nil {
			t.Fatalf("%v: %v", settings, err)
		}
		if less := s.need(t); less.Holds >= again.Holds {
			t.Errorf("%v: it has %d pages in a pool of 3 %% fewer", settings, less.Holds)
		}
		_ = s.in.Stop()
	}
	t.Logf("of %d pools, at most %.1f %% was free", settingsTried(), unused)
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
			set, trouble := SettingsOf(t.Context(), h, inst, login)
			said := SaidBy(inst, set)
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
