//go:build root

package pagesize

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/bench/database"
	children "bulkhead/internal/bench/process"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/family"
	"bulkhead/internal/testhost/release"
)

// Page tables of a PostgreSQL with 64 clients that have read all of its shared memory are with pages of 2 MiB at most
// 1/100 of those with 4 KiB. It takes 12 GiB of memory for minutes, and as much of page cache where there is room: a
// process needs about 140 KiB for all but the shared memory (Debian's has 30 libraries), so of 6.5 GiB it is 1/88.
func TestPageTablesRoot(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("it takes minutes; set LONG=1")
	}
	const buffers, size, clients = 9728, 9216, 64 // MiB, MiB
	h := host.New("/")
	info, err := h.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	if info["MemAvailable"] < 16<<30 {
		t.Skipf("it needs 16 GiB of memory, and %d MiB are available", info["MemAvailable"]>>20)
	}
	n := children.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	dir, err := os.MkdirTemp("/var/tmp", "bh-pagesize-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	d, paths := release.Database(t, "postgresql")
	in, err := database.NewInstance(d, dir, buffers, paths, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Kind.Install(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Stop() })
	s, err := Open(t.Context(), h, dir, []int64{2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Stop()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	query := func(sql string) string {
		t.Helper()
		said, err := in.Query(t.Context(), "postgres", sql)
		if err != nil {
			t.Fatal(err)
		}
		return said
	}
	need, err := in.HugePages(t.Context(), 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]int64{}
	for _, word := range []string{"off", "on"} {
		if word == "on" {
			reserve(t, s, need)
		}
		in.Options = []string{"-c", "huge_pages=" + word, "-c", "max_parallel_workers_per_gather=0", "-c",
			"autovacuum=off", "-c", "jit=off"} // LLVM is 300 KiB of page tables for each process
		if err := in.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if word == "off" {
			query("CREATE EXTENSION pg_prewarm")
			query("CREATE TABLE holes (a int)")
			makeHoles(t, filepath.Join(in.DataDir, query("SELECT pg_relation_filepath('holes')")), size)
		}
		if _, err := Prove(h, in.PID(), map[string]int64{"off": Usual, "on": 2 << 20}[word], buffers<<20); err != nil {
			t.Error(err)
		}
		if got := query("SELECT pg_prewarm('holes')"); got != strconv.Itoa(size*128) {
			t.Fatalf("%s pages were read, not %d", got, size*128)
		}
		tables[word] = readByAll(t, h, in, clients)
		_ = in.Stop()
	}
	t.Logf("page tables with %d clients: %d KiB with pages of 4 KiB, %d KiB with 2 MiB (1/%.0f)", clients,
		tables["off"]>>10, tables["on"]>>10, float64(tables["off"])/float64(tables["on"]))
	if tables["on"] == 0 || tables["on"]*100 > tables["off"] {
		t.Errorf("page tables are %v", tables)
	}
}

// reserve makes the pool. Processes of the server that was stopped may still give their memory back.
func reserve(t *testing.T, s *Settings, pages int64) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		err := s.Reserve(t.Context(), 2<<20, pages)
		if err == nil {
			return
		}
		if time.Since(began) > 30*time.Second {
			t.Skipf("this kernel gives too few huge pages now: %v", err)
		}
	}
}

// makeHoles makes a table so many MiB large, of files without blocks on the disk: PostgreSQL has 1 GiB in each.
func makeHoles(t *testing.T, file string, size int) {
	t.Helper()
	const segment = 1024
	owner := filepath.Dir(file)
	for i := 0; size > 0; i, size = i+1, size-segment {
		name := file
		if i > 0 {
			name = fmt.Sprintf("%s.%d", file, i)
		}
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o666)
		if err == nil {
			err = f.Truncate(int64(min(size, segment)) << 20)
			_ = f.Chmod(0o666)
			_ = f.Close()
		}
		if err != nil {
			t.Fatalf("in %s: %v", owner, err)
		}
	}
}

// readByAll has clients read the table and stay, and gives the most bytes of page tables meanwhile.
func readByAll(t *testing.T, h *host.Host, in *database.Instance, clients int) (most int64) {
	t.Helper()
	script := filepath.Join(t.TempDir(), "script.sql")
	if err := os.WriteFile(script, []byte("SELECT count(*) FROM holes;\nSELECT pg_sleep(20);\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := in.Supervisor.Start(children.Spec{Args: []string{children.LookPath("pgbench"), "-h", in.RunDir, "-p",
		strconv.Itoa(in.Port), "-U", "postgres", "-n", "-c", strconv.Itoa(clients), "-j", "2", "-t", "1", "-f", script,
		"postgres"}})
	if err != nil {
		t.Fatal(err)
	}
	together := false
	for {
		select {
		case <-c.Done:
			if c.Err != nil || !together {
				t.Fatalf("clients: %v, all at once: %v", c.Err, together)
			}
			return most
		case <-time.After(time.Second):
		}
		pids, err := family.Children(h.Proc, in.PID())
		if err != nil {
			t.Skipf("this kernel does not tell children: %v", err)
		}
		asleep := 0
		if len(pids) > clients {
			said, err := in.Query(t.Context(), "postgres",
				"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
			if err != nil {
				t.Fatal(err)
			}
			asleep, _ = strconv.Atoi(strings.TrimSpace(said))
		}
		together = together || asleep == clients
		if tables, err := Tables(h, in.PID()); err == nil {
			most = max(most, tables)
		}
	}
}
