//go:build root

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/agent/wire"
	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

func TestTakesTheSocketOfADeadAgentOnly(t *testing.T) {
	s := newSite(t)
	dead, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = dead.Close()
	s.start(time.Hour)
	c, err := transaction.Open(transaction.Options{State: s.state})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// One for each state directory, whatever the socket; one for each socket, whatever the state directory.
	for _, socket := range []string{s.socket, s.socket + "2"} {
		err = New(c, Options{Socket: socket}).Run(context.Background())
		if want := fmt.Sprintf("process %d, listening on %q", os.Getpid(),
			s.socket); api.CodeOf(err) != api.CodeLocked || !strings.Contains(err.Error(), want) {
			t.Errorf("a second agent on %s: %v", socket, err)
		}
	}
	elsewhere, err := transaction.Open(transaction.Options{State: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	err = New(elsewhere, Options{Socket: s.socket}).Run(context.Background())
	if api.CodeOf(err) != api.CodeLocked || !strings.Contains(err.Error(), "already listens") {
		t.Errorf("a second agent on the same socket: %v", err)
	}
	if _, err := client.Dial(context.Background(), s.socket, t.TempDir()); api.CodeOf(err) != api.CodeUsage {
		t.Errorf("dial for another state directory: %v", err)
	}
	if s.agentError() == "" {
		t.Error("no policy is applied, yet status does not say so")
	}
}

func TestErrorsTravelWhole(t *testing.T) {
	s := newSite(t)
	s.start(time.Hour)
	_, err := s.try(api.Request{Verb: "apply", Sources: s.sources("groups:\n  a: {cpu: {limt: 1}}\n")})
	var problems policy.Problems
	if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Pos.Line != 4 || problems[0].Hint == "" ||
		problems[0].Source == "" {
		t.Errorf("problems: %v", err)
	}
	s.apply("groups:\n  a: {match: [{exe: no-such-program}], memory: {max: 64MiB}}\n")
	_, err = s.try(api.Request{Verb: "set", Assign: []string{"nosuch:tasks=1"}})
	var own *api.Error
	if !errors.As(err, &own) || own.Code != api.CodeUsage || own.Hint != "the groups are a" {
		t.Errorf("a usage error: %#v", err)
	}
	holder := testhost.HoldMemory(t)
	s.must(api.Request{Verb: "move", Group: "a", PIDs: []int{holder.ID.PID}})
	if !holder.Touch(48 << 20) {
		t.Fatal("the process was killed below its limit")
	}
	_, err = s.try(api.Request{Verb: "set", Assign: []string{"a:memory.max=16MiB"}})
	var refused *apply.RefusedError
	if !errors.As(err, &refused) || len(refused.Refusals) != 1 || refused.Refusals[0].Group != "a" ||
		api.CodeOf(err) != api.CodeRefused {
		t.Errorf("a refusal: %#v", err)
	}
	_, err = s.try(api.Request{Verb: "dance"})
	if api.CodeOf(err) != api.CodeUsage {
		t.Errorf("an unknown verb: %v", err)
	}
	entries, err := journalOf(s)
	if err != nil || len(entries) == 0 || !strings.Contains(entries[0].By,
		fmt.Sprintf("root (uid 0, pid %d)", os.Getpid())) {
		t.Errorf("history %+v, %v", entries, err)
	}
}

func journalOf(s *site) ([]struct{ By string }, error) {
	c, err := transaction.Open(transaction.Options{State: s.state})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	history, err := c.Store.History()
	var entries []struct{ By string }
	for _, e := range history {
		entries = append(entries, struct{ By string }{e.By})
	}
	return entries, err
}

// Who asks is what the kernel says, not what the request says.
const (
	envAsk  = "BULKHEAD_TEST_ASK_SOCKET"
	envFrom = "BULKHEAD_TEST_ASK_STATE"
)

func TestOnlyRootMayAsk(t *testing.T) {
	s := newSite(t)
	s.start(time.Hour)
	s.apply("groups:\n  a: {match: [{exe: no-such-program}], cpu: {limit: 1}}\n")
	if info, err := os.Stat(s.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
	// The mode is the first lock; behind it, the peer's credentials are the second.
	if err := os.Chmod(s.socket, 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAskInACopy$", "-test.v")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), envAsk+"="+s.socket, envFrom+"="+s.state)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("a copy as uid 65534: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "asked as uid 65534") {
		t.Errorf("the copy did not ask:\n%s", out)
	}
	if got := s.quota("a"); got != "100000" {
		t.Errorf("quota %s after what others asked", got)
	}
}

// TestAskInACopy is the other end, as another user; on its own it has nobody to ask.
func TestAskInACopy(t *testing.T) {
	socket := os.Getenv(envAsk)
	if socket == "" {
		return
	}
	t.Logf("asked as uid %d", os.Getuid())
	if c, err := client.Dial(context.Background(), socket, os.Getenv(envFrom)); api.CodeOf(err) != api.CodeRefused {
		t.Errorf("dial: %v, %v", c, err)
	}
	c := client.New(socket)
	if st, err := c.Status(context.Background()); api.CodeOf(err) != api.CodeRefused || st != nil {
		t.Errorf("status: %+v, %v", st, err)
	}
	for _, r := range []api.Request{
		{Verb: "set", Assign: []string{"a:cpu.limit=0.1"}, By: "root"},
		{Verb: "release", All: true},
		{Verb: "apply", Force: true, Reason: "because"},
		{Verb: "freeze", Groups: []string{"a"}, For: time.Hour, DryRun: true},
	} {
		_, err := c.Do(context.Background(), r)
		if api.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(), "only root may ask the agent") {
			t.Errorf("%s as uid %d: %v", r.Verb, os.Getuid(), err)
		}
	}
}

// What is no request is turned away, and the agent goes on.
func TestNonsenseOverTheSocket(t *testing.T) {
	s := newSite(t)
	s.start(time.Hour)
	for name, text := range map[string]string{
		"no HTTP": "\x00\x01\x02 hello\r\n\r\n",
		"no JSON": "POST /v1/do HTTP/1.1\r\nHost: agent\r\nContent-Length: 4\r\nConnection: close\r\n\r\n{]{]",
		"too large": "POST /v1/do HTTP/1.1\r\nHost: agent\r\nContent-Length: 99999999\r\nConnection: " +
			"close\r\n\r\n{\"verb\":\"" + strings.Repeat("x", wire.MaxRequest),
		"no path":   "GET /etc/shadow HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n",
		"no method": "DELETE /v1/status HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n",
	} {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(conn, text)
		got, _ := io.ReadAll(conn)
		_ = conn.Close()
		body := string(got)
		if _, after, ok := strings.Cut(body, "\r\n\r\n"); ok {
			body = after
		}
		var a wire.Answer
		if err := json.Unmarshal([]byte(body), &a); err == nil && a.Error == nil {
			t.Errorf("%s: %s", name, got)
		}
		if s.agentError() != "no policy is applied on this host" {
			t.Errorf("after %s: %s", name, s.agentError())
		}
	}
}

// Verbs that come at once are done one after the other, beside the looks.
func TestManyAtOnce(t *testing.T) {
	s := newSite(t)
	s.start(100 * time.Millisecond)
	s.apply("groups:\n  a: {match: [{exe: no-such-program}], cpu: {limit: 1}, tasks: 1000}\n")
	errs := make(chan error)
	const clients = 6
	for i := range clients {
		go func() {
			var err error
			for n := range 5 {
				_, e1 := s.client.Do(context.Background(),
					api.Request{Verb: "set", Assign: []string{fmt.Sprintf("a:tasks=%d", 100+10*i+n)}})
				_, e2 := s.client.Status(context.Background())
				err = errors.Join(err, e1, e2)
			}
			errs <- err
		}()
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	s.must(api.Request{Verb: "unset", Assign: []string{"a:tasks"}})
	if text, err := s.tree.Read(cgroup.File{Dir: cgroup.Dir{Hierarchy: "pids", Path: "/" + s.root + "/a"},
		Name: "pids.max"}); err != nil || text != "1000" {
		t.Errorf("pids.max %q, %v", text, err)
	}
	if a := s.status().Agent; a.Error != "" || a.Repaired != 0 {
		t.Errorf("agent %+v", a)
	}
}
