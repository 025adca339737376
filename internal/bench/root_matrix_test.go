//go:build root

package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/hugepool"
)

// pageSizesOf are the settings of the host that a matrix changes.
func pageSizesOf(t *testing.T) (all [3]string) {
	t.Helper()
	actuators := tunable.Host{Root: host.New("/").Root, Dir: "/"}.Actuators()
	for i, file := range append(tunable.Transparent, hugepool.OfSize(2<<20)) {
		got, err := actuators[tunable.KindAttribute].Read(t.Context(), file)
		if err != nil {
			t.Skipf("this kernel has not what a matrix changes: %v", err)
		}
		all[i] = got
	}
	return all
}

// A matrix that is killed while its server is in huge pages, of a pool or transparent ones, leaves the host as it was,
// without another run.
func TestKilledMatrixRoot(t *testing.T) {
	needRoot(t)
	for name, tt := range map[string]struct{ load, page, thp string }{
		"postgresql": {"pgbench, script: select-only", "2MiB", "never"},
		"mariadb":    {"sysbench, script: oltp_point_select", "2MiB", "never"},
		"redis":      {"redis-benchmark, script: set", "transparent", "always"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "mariadb" && os.Getenv("LONG") == "" {
				t.Skip("uses its pool as PostgreSQL does: LONG=1")
			}
			before := pageSizesOf(t)
			dir := workArea(t)
			file := filepath.Join(t.TempDir(), "tiny.yaml")
			word := map[string]string{"2MiB": "p2m", "transparent": "thp"}[tt.page]
			if err := os.WriteFile(file, []byte(`version: 1
name: tiny
title: a tiny matrix
databases: {db: {engine: `+name+`, buffer: "64"}}
loads: {client: {program: `+tt.load+`, on: db}}
matrix: {load: client, pages: [`+tt.page+`], sizes: {one: "16"}, clients: {two: "2"}}
shape: [{what: it works, measure: `+word+`_one_two.tps, least: "1"}]
`), 0o600); err != nil {
				t.Fatal(err)
			}
			r := startProgram(t, dir, exec.Command(buildProgram(t), "bench", file, "--seconds", "30", "--rounds", "1",
				"--dir", dir))
			r.await(t, "transactions/s")
			if during := pageSizesOf(t); during[0] != tt.thp || (during[2] == before[2]) != (tt.page == "transparent") {
				t.Errorf("while it runs: %v, before: %v", during, before)
			}
			if err := r.cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = r.end(t) // it was killed
			began := time.Now()
			for pageSizesOf(t) != before || len(serversBelow(t, dir)) > 0 {
				if time.Since(began) > 10*time.Second {
					t.Fatalf("10 s after it was killed: %v, before: %v; servers: %v", pageSizesOf(t), before,
						serversBelow(t, dir))
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Logf("as it was %v after the kill", time.Since(began).Round(time.Millisecond))
		})
	}
}

// serversBelow are the processes that work below a directory. One that writes its title over its environment has no
// other mark.
func serversBelow(t *testing.T, dir string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range all {
		if at, err := os.Readlink(link); err == nil && strings.HasPrefix(at, dir+"/") { // else it has ended
			pids = append(pids, link)
		}
	}
	return pids
}
