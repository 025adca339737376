//go:build root

package memory

import (
	"context"
	"fmt"
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

// Real servers with pages of 2 MiB are seen to use them, by their maps and by their own word; and what asks for them in
// vain is told. Redis has no such setting.
func TestLiveServersRoot(t *testing.T) {
	if !pool(t, 128) {
		t.Skip("this kernel gives no huge pages now")
	}
	n := children.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	dir, err := os.MkdirTemp("/var/tmp", "bh-memory-") // servers of other users enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
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
			paths, err := children.Find(database.Engines[c.kind].Programs)
			if err != nil {
				t.Fatal(err)
			}
			in, err := database.NewInstance(scenario.Database{Name: c.kind, Engine: c.kind}, dir, buffer, paths, n)
			if err != nil {
				t.Fatal(err)
			}
			if err := in.Kind.Install(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			if err := in.Start(t.Context(), func(user string, args []string) []string {
				as := []string{"setpriv", "--reuid", user, "--regid", user, "--init-groups"}
				return slices.Concat(as, args, c.more)
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = in.Stop() })
			all, err := Instances(h)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(all, func(i engine.Instance) bool { return i.Main.PID == in.PID() })
			if at < 0 {
				t.Fatalf("process %d is not among %+v", in.PID(), all)
			}
			i, err := Read(t.Context(), h, facts, "madvise", all[at])
			if err != nil {
				t.Fatal(err)
			}
			login, err := dblogin.Parse(fmt.Sprintf(c.dsn, in.Socket, in.Port, filepath.Dir(in.Socket)))
			if err != nil {
				t.Fatal(err)
			}
			said, trouble := SaidBy(context.Background(), h, all[at], login)
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
			s, err := Summarize(h, facts, "madvise", all[at])
			if err != nil || s.PageTables == 0 || (s.Pool > 0) != c.huge {
				t.Errorf("its status: %+v, %v", s, err)
			}
		})
	}
}
