//go:build root

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/testhost"
)

// agentBesideADeadDisk starts an agent in a mount namespace of its own, which has a file system that never answers:
// FUSE, whose server reads nothing. It answers with an error as soon as the test ends.
func (s *site) agentBesideADeadDisk() {
	s.t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		s.t.Fatalf("this test needs FUSE: %v", err)
	}
	dir := filepath.Join(s.dir, "dead")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	agent := s.command("agent", "--every", "100ms", "--full", "1s")
	cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-ec",
		`mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 /dev/dead "$0"; exec "$@" 3<&-`, dir},
		agent.Args...)...)
	cmd.Dir, cmd.SysProcAttr, cmd.ExtraFiles = agent.Dir, agent.SysProcAttr, []*os.File{fuse}
	b := s.startCommand(cmd)
	s.t.Cleanup(func() { _ = fuse.Close() })
	s.listens(b)
}

// counted asks a Redis server, on a new connection and in three commands, how many connections it has taken and how
// many commands it has got. What came before it is counted: the server takes connections in their order.
func (d *database) counted() (connections, commands int) {
	d.t.Helper()
	c, err := d.dial()
	if err == nil {
		defer c.Close()
		_, err = io.WriteString(c, "PING\r\nINFO stats\r\nQUIT\r\n")
	}
	if err != nil {
		d.t.Fatal(err)
	}
	text, err := io.ReadAll(c)
	figure := func(name string) int {
		_, rest, _ := strings.Cut(string(text), name+":")
		value, _, _ := strings.Cut(rest, "\r")
		n, bad := strconv.Atoi(value)
		if err != nil || bad != nil {
			d.t.Fatalf("the server answers %q: %v", text, err)
		}
		return n
	}
	return figure("total_connections_received"), figure("total_commands_processed")
}

// A database that is stopped by a signal, a file system that never answers and 20 scrapers at once: every scrape is
// answered, the collectors that do not hang read on, the one that does says so, and nobody asks the database anything.
func TestScrapesAskNoDatabase(t *testing.T) {
	s := newSite(t)
	red := redis(t)
	red.start()
	s.write(fmt.Sprintf("groups:\n  \"redis{port}\": {each: {engine: redis, port: \"%d\"}, cpu: {limit: 50%%}}\n",
		red.port))
	s.agentBesideADeadDisk()
	s.must("apply")
	port := testhost.FreePort(t)
	s.start("serve", "--listen", fmt.Sprint("127.0.0.1:", port))
	scrape := func() (string, error) {
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err == nil && r.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", r.Status, text)
		}
		return string(text), err
	}
	group := fmt.Sprintf(`bulkhead_group_cpu_seconds_total{engine="redis",group="%s"`, red.name)
	soon(t, "figures of the group", func() bool { text, _ := scrape(); return strings.Contains(text, group) })
	connections, commands := red.counted()
	if err := red.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = red.process.Signal(syscall.SIGCONT) }()
	var took []time.Duration
	var last string
	var mu sync.Mutex // guards both
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 15 {
				began := time.Now()
				text, err := scrape()
				if err != nil || !strings.Contains(text, "\nbulkhead_up 1\n") || !strings.Contains(text, group) {
					t.Errorf("a scrape: %v\n%s", err, text)
				}
				mu.Lock()
				took, last = append(took, time.Since(began)), text
				mu.Unlock()
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	t.Logf("of %d scrapes half take %v, 99 in 100 %v, the longest %v", len(took), took[len(took)/2],
		took[len(took)*99/100], took[len(took)-1])
	// The first reading of file systems hangs, so there are none; whose collector reads every 5 s has read since.
	if strings.Contains(last, "bulkhead_host_filesystem_bytes") {
		t.Error("there are figures of file systems, although one never answers")
	}
	age := regexp.MustCompile(`bulkhead_collector_age_seconds\{collector="cpu"\} ([0-9.e-]+)`).FindStringSubmatch(last)
	if age == nil {
		t.Fatalf("no age of cpu in\n%s", last)
	}
	if seconds, err := strconv.ParseFloat(age[1], 64); err != nil || seconds > 60 {
		t.Errorf("the last reading of cpu is %s s old", age[1])
	}
	soon(t, "the collector that hangs to be named", func() bool {
		return strings.Contains(s.must("collectors"), "filesystem: a reading has been under way for")
	})
	if err := red.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	after, more := red.counted()
	if after != connections+1 || more != commands+3 {
		t.Errorf("the database had %d connections and %d commands, and has %d and %d", connections, commands, after,
			more)
	}
}
