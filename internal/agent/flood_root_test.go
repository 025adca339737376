//go:build root

package agent

import (
	"context"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
)

// floodVariable makes a copy of the test binary a process that connects to a socket again and again.
const floodVariable = "BULKHEAD_TEST_FLOOD"

func init() {
	for socket := os.Getenv(floodVariable); socket != ""; {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
		}
	}
}

// flood has two processes of a user whom nothing admits connect to a socket until stop is called.
func flood(t *testing.T, socket string) (stop func()) {
	t.Helper()
	const nobodyKnows = 4123471
	var all []*exec.Cmd
	for range 2 {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), floodVariable+"="+socket)
		c.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: nobodyKnows, Gid: nobodyKnows}, Pdeathsig: syscall.SIGKILL,
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	stop = func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		all = nil
	}
	t.Cleanup(stop)
	return stop
}

// Connections of another user neither hide the agent from root nor slow root down: status and release take at most
// twice what they take beside the same processes that connect to nobody.
func TestFloodOfConnections(t *testing.T) {
	const rounds, asks = 3, 7
	s := newSite(t)
	s.start(time.Hour)
	const groups = "groups:\n  a: {match: [{exe: no-such-program}], cpu: {limit: 1}, " +
		"owner: {user: 4123472, may: [run]}}\n"
	s.apply(groups)
	soon(t, "the socket to be open to others", func() bool {
		info, err := os.Stat(s.socket)
		return err == nil && info.Mode().Perm() == unlocked
	})
	verbs := map[string]func(c *client.Client) error{
		"status": func(c *client.Client) error { _, err := c.Status(context.Background()); return err },
		"release": func(c *client.Client) error {
			_, err := c.Do(context.Background(), api.Request{Verb: "release", All: true})
			return err
		},
	}
	took := map[string][]time.Duration{}
	for range rounds {
		for _, beside := range []string{"nobody", "flood"} {
			socket := s.socket
			if beside == "nobody" {
				socket += ".nobody"
			}
			stop := flood(t, socket)
			for range asks {
				for name, ask := range verbs {
					began := time.Now()
					c, err := client.Dial(context.Background(), s.socket, s.state)
					if err != nil || c == nil {
						t.Fatalf("%s beside %s: no agent: %v", name, beside, err)
					}
					if err := ask(c); err != nil {
						t.Fatalf("%s beside %s: %v", name, beside, err)
					}
					took[name+beside] = append(took[name+beside], time.Since(began))
				}
				s.apply(groups)
			}
			stop()
		}
	}
	for name := range verbs {
		middle := func(all []time.Duration) time.Duration { slices.Sort(all); return all[len(all)/2] }
		without, with := middle(took[name+"nobody"]), middle(took[name+"flood"])
		t.Logf("%s: %v beside a flood, %v without", name, with, without)
		if with > 2*without {
			t.Errorf("%s takes %v beside a flood, and %v without", name, with, without)
		}
	}
}
