// Package neighbour is the neighbours of a proof: hogs of CPU, memory and disk, backups, queries, and exporters that
// are scraped. A [Fleet] keeps those of one arm running; [Hog] is what a hog does in a process of its own.
package neighbour

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/scenario"
)

const (
	// HogGrace is how long after its arm a hog ends by itself.
	HogGrace      = 3 * time.Minute
	mortalRestart = time.Second
)

// Neighbour is one that is ready to start.
type Neighbour struct {
	scenario.Neighbour
	Count    int
	Bytes    int64
	Rate     int64 // bytes a second
	Block    int64 // bytes
	File     string
	Database *database.Instance // of a backup, a query or an exporter
	Every    time.Duration      // between two scrapes
	Port     int                // of an exporter
	Binary   string             // bulkhead itself, and the socket of the run's agent
	Socket   string
	Paths    process.Programs // of the host; a release brings its own
}

// Programs is what a neighbour on a database starts beside bulkhead itself. A release brings its own.
func Programs(n scenario.Neighbour, on scenario.Database) []process.Program {
	kind, engine := n.Kind, on.Engine
	switch {
	case n.Program != "" && n.Program != scenario.ServeExporter:
		return []process.Program{{Name: n.Program, Package: n.Program}}
	case on.Release != "":
		return nil
	case kind == "backup" && engine == "mariadb":
		return []process.Program{{Name: "mariadb-backup", Package: "mariadb-backup", Older: "mariabackup"}}
	case kind == "backup" && engine == "postgresql":
		return []process.Program{{Name: "pg_basebackup", Package: "postgresql-client"}}
	case kind == "query" && engine == "mariadb":
		return []process.Program{{Name: "mariadb", Package: "mariadb-client", Older: "mysql"}}
	case kind == "query" && engine == "postgresql":
		return []process.Program{{Name: "psql", Package: "postgresql-client"}}
	}
	return nil
}

// Command is what the neighbour starts; work is the directory of a backup, which is empty each time.
func (n *Neighbour) Command(binary, work string, lasts time.Duration) []string {
	hog := []string{binary, "bench", "hog", n.Kind, "--for=" + lasts.String()}
	switch n.Kind {
	case "cpu":
		hog = append(hog, "--programs="+strconv.Itoa(max(n.Count, 1)))
		if n.Shared {
			hog = append(hog, "--shared")
		}
		return hog
	case "memory":
		return append(hog, "--bytes="+strconv.FormatInt(n.Bytes, 10))
	case "disk":
		hog = append(hog, "--file="+n.File, "--rate="+strconv.FormatInt(n.Rate, 10),
			"--block="+strconv.FormatInt(n.Block, 10))
		if n.Random {
			hog = append(hog, "--random")
		}
		if n.Buffered {
			hog = append(hog, "--buffered")
		}
		return hog
	case "exporter":
		return append(append([]string{binary, "bench", "exporter", "--for=" + lasts.String(), "--every=" +
			n.Every.String(), "--url=http://" + n.address() + "/metrics"}, n.login()...), n.exporter()...)
	}
	paths := n.Paths
	if n.Database.Release != "" {
		paths = n.Database.Programs()
	}
	if n.Kind == "backup" {
		if n.Database.Engine == "postgresql" {
			return []string{paths["pg_basebackup"], "--host=" + n.Database.RunDir, "--port=" +
				strconv.Itoa(n.Database.Port), "--username=postgres", "--pgdata=" +
				work, "--checkpoint=fast", "--no-sync"}
		}
		if dump := paths["mysqldump"]; dump != "" { // a release's; mariadb-backup does not know its files
			return []string{dump, "--no-defaults", "--user=root", "--socket=" + n.Database.Socket, "--all-databases",
				"--single-transaction", "--result-file=" + work}
		}
		return []string{paths["mariadb-backup"], "--no-defaults", "--backup", "--user=root", "--socket=" +
			n.Database.Socket, "--target-dir=" + work}
	}
	if n.Database.Engine == "postgresql" {
		return []string{paths["psql"], "--host=" + n.Database.RunDir, "--port=" + strconv.Itoa(n.Database.Port),
			"--username=postgres", "--no-psqlrc", "--quiet", "--output=/dev/null", "--command=" + n.SQL, "postgres"}
	}
	return []string{paths["mariadb"], "--no-defaults", "--user=root", "--socket=" + n.Database.Socket, "--execute=" +
		n.SQL, n.Database.Account.Database}
}

// address is where an exporter listens.
func (n *Neighbour) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.Port)) }

// exporter is the command of what is scraped.
func (n *Neighbour) exporter() []string {
	if n.Program == scenario.ServeExporter {
		return []string{"--", n.Binary, "--socket", n.Socket, "serve", "--listen", n.address()}
	}
	return []string{"--", n.Paths[n.Program], "--web.listen-address=" + n.address()}
}

// login tells an exporter of a database how to log in. Servers of a run need no password.
func (n *Neighbour) login() []string {
	switch {
	case n.Database == nil || n.Program == scenario.ServeExporter:
		return nil
	case n.Database.Engine == "postgresql":
		return []string{"--dsn=host=" + n.Database.RunDir + " port=" + strconv.Itoa(n.Database.Port) +
			" user=postgres dbname=postgres sslmode=disable"}
	}
	return []string{"--dsn=root@unix(" + n.Database.Socket + ")/"}
}

// repeats says whether the neighbour is a job that ends and is started again, and not one that runs until it is ended.
func (n *Neighbour) repeats() bool { return n.Kind == "backup" || n.Kind == "query" }

// Fleet is the neighbours of one arm.
type Fleet struct {
	supervisor *process.Supervisor
	stopping   chan struct{}
	wait       sync.WaitGroup
	mu         sync.Mutex
	errs       []error
	pids       map[string][]int // of neighbours by group
	ends       map[string]int   // jobs that were done, by name
}

// NewFleet makes an empty fleet, whose programs a supervisor starts.
func NewFleet(n *process.Supervisor) *Fleet {
	return &Fleet{supervisor: n, stopping: make(chan struct{}), pids: map[string][]int{}, ends: map[string]int{}}
}

// Keep runs one neighbour until the fleet stops. args makes its command each time. A mortal one, which its group's
// memory limit kills, is started again as a service would be, and a job when it is done; any other that ends by itself
// is an error.
func (h *Fleet) Keep(ctx context.Context, n *Neighbour, args func() ([]string, error)) {
	h.wait.Go(func() {
		for {
			command, err := args()
			if err != nil {
				h.fail(err)
				return
			}
			var complaints bytes.Buffer
			c, err := h.supervisor.Start(process.Spec{Args: command, Stdout: &complaints, Stderr: &complaints})
			if err != nil {
				h.fail(err)
				return
			}
			h.born(n.Group, c.PID())
			select {
			case <-h.stopping:
				c.Kill()
				return
			case <-ctx.Done():
				c.Kill()
				return
			case <-c.Done:
			}
			switch {
			case n.repeats() && c.Err == nil:
				h.done(n.Name)
			case n.Mortal && c.Killed():
			default:
				h.fail(fmt.Errorf("run neighbour %q: it ended by itself (%v)\n%s", n.Name, c.Cmd.ProcessState,
					process.LastLines(complaints.String(), 5)))
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

func (h *Fleet) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

func (h *Fleet) born(group string, pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pids[group] = append(h.pids[group], pid)
}

func (h *Fleet) done(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends[name]++
}

// Newest are the processes of a group that were started last.
func (h *Fleet) Newest(group string) []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	pids := h.pids[group]
	return append([]int(nil), pids[max(0, len(pids)-4):]...)
}

// Stop kills the neighbours, waits for them, and says if one had not done its work.
func (h *Fleet) Stop() error {
	close(h.stopping)
	h.wait.Wait()
	if len(h.errs) == 0 {
		return nil
	}
	return h.errs[0] // they fail alike
}

// FreshDir empties the directory that a backup writes into.
func FreshDir(dir, name string, number int) (string, error) {
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
