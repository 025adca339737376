package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"bulkhead/internal/scenario"
)

const (
	hogGrace      = 3 * time.Minute // hogs end by themselves this long after their arm
	mortalRestart = time.Second
)

// neighbour is one that is ready to start.
type neighbour struct {
	scenario.Neighbour
	count int
	bytes int64
	rate  int64 // bytes a second
	block int64 // bytes
	file  string
	in    *instance // of a backup or a query
	paths programs
}

// needs is what a neighbour starts beside bulkhead itself.
func neighbourPrograms(kind, engine string) []program {
	switch {
	case kind == "backup" && engine == "mariadb":
		return []program{{name: "mariadb-backup", pkg: "mariadb-backup", older: "mariabackup"}}
	case kind == "backup" && engine == "postgresql":
		return []program{{name: "pg_basebackup", pkg: "postgresql-client"}}
	case kind == "query" && engine == "mariadb":
		return []program{{name: "mariadb", pkg: "mariadb-client", older: "mysql"}}
	case kind == "query" && engine == "postgresql":
		return []program{{name: "psql", pkg: "postgresql-client"}}
	}
	return nil
}

// command is what the neighbour starts; work is the directory of a backup, which is empty each time.
func (n *neighbour) command(binary, work string, lasts time.Duration) []string {
	hog := []string{binary, "bench", "hog", n.Kind, "--for=" + lasts.String()}
	switch n.Kind {
	case "cpu":
		hog = append(hog, "--programs="+strconv.Itoa(max(n.count, 1)))
		if n.Shared {
			hog = append(hog, "--shared")
		}
		return hog
	case "memory":
		return append(hog, "--bytes="+strconv.FormatInt(n.bytes, 10))
	case "disk":
		hog = append(hog, "--file="+n.file, "--rate="+strconv.FormatInt(n.rate, 10), "--block="+strconv.FormatInt(n.block, 10))
		if n.Random {
			hog = append(hog, "--random")
		}
		if n.Buffered {
			hog = append(hog, "--buffered")
		}
		return hog
	case "backup":
		if n.in.Engine == "postgresql" {
			return []string{n.paths["pg_basebackup"], "--host=" + n.in.rundir, "--port=" + strconv.Itoa(n.in.port), "--username=postgres", "--pgdata=" + work, "--checkpoint=fast", "--no-sync"}
		}
		return []string{n.paths["mariadb-backup"], "--no-defaults", "--backup", "--user=root", "--socket=" + n.in.socket, "--target-dir=" + work}
	}
	if n.in.Engine == "postgresql" {
		return []string{n.paths["psql"], "--host=" + n.in.rundir, "--port=" + strconv.Itoa(n.in.port), "--username=postgres", "--no-psqlrc", "--quiet", "--output=/dev/null", "--command=" + n.SQL, "postgres"}
	}
	return []string{n.paths["mariadb"], "--no-defaults", "--user=root", "--socket=" + n.in.socket, "--execute=" + n.SQL, n.in.account.database}
}

// repeats says whether the neighbour is a job that ends and is started again, and not one that runs until it is ended.
func (n *neighbour) repeats() bool { return n.Kind == "backup" || n.Kind == "query" }

// herd is the neighbours of one arm.
type herd struct {
	nursery  *nursery
	stopping chan struct{}
	wait     sync.WaitGroup
	mu       sync.Mutex
	errs     []error
	pids     map[string][]int // of neighbours by group
	ends     map[string]int   // jobs that were done, by name
}

func newHerd(n *nursery) *herd {
	return &herd{nursery: n, stopping: make(chan struct{}), pids: map[string][]int{}, ends: map[string]int{}}
}

// keep runs one neighbour until the herd stops. args makes its command each time. A mortal one, which its group's memory limit
// kills, is started again as a service would be, and a job when it is done; any other that ends by itself is an error.
func (h *herd) keep(ctx context.Context, n *neighbour, args func() ([]string, error)) {
	h.wait.Go(func() {
		for {
			command, err := args()
			if err != nil {
				h.fail(err)
				return
			}
			var complaints bytes.Buffer
			c, err := h.nursery.start(spec{args: command, stdout: &complaints, stderr: &complaints})
			if err != nil {
				h.fail(err)
				return
			}
			h.born(n.Group, c.pid())
			select {
			case <-h.stopping:
				c.kill()
				return
			case <-ctx.Done():
				c.kill()
				return
			case <-c.done:
			}
			switch {
			case n.repeats() && c.err == nil:
				h.done(n.Name)
			case n.Mortal && c.killed():
			default:
				h.fail(fmt.Errorf("run neighbour %q: it ended by itself (%v)\n%s", n.Name, c.cmd.ProcessState, lastLines(complaints.String(), 5)))
				return
			}
			if !n.Mortal {
				continue
			}
			select {
			case <-h.stopping:
				return
			case <-ctx.Done():
				return
			case <-time.After(mortalRestart):
			}
		}
	})
}

func (h *herd) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

func (h *herd) born(group string, pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pids[group] = append(h.pids[group], pid)
}

func (h *herd) done(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends[name]++
}

// newest are the processes of a group that were started last.
func (h *herd) newest(group string) []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	pids := h.pids[group]
	return append([]int(nil), pids[max(0, len(pids)-4):]...)
}

// stop kills the neighbours, waits for them, and says if one had not done its work.
func (h *herd) stop() error {
	close(h.stopping)
	h.wait.Wait()
	if len(h.errs) == 0 {
		return nil
	}
	return h.errs[0] // they fail alike
}

// freshDir empties the directory that a backup writes into.
func freshDir(dir, name string, number int) (string, error) {
	path := filepath.Join(dir, fmt.Sprintf("%s-%d", name, number))
	old := filepath.Join(dir, fmt.Sprintf("%s-%d", name, number-1))
	if err := os.RemoveAll(old); err != nil {
		return "", fmt.Errorf("remove the last backup: %w", err)
	}
	if err := os.RemoveAll(path); err != nil {
		return "", fmt.Errorf("remove a backup: %w", err)
	}
	return path, nil
}
