package unit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd/sandbox"
	"bulkhead/internal/transaction"
)

func sources(text string) []policy.Source {
	return []policy.Source{{Path: "policy.yaml", Text: "version: 1\n" + text}}
}

const (
	plain   = "groups: {a: {match: [{user: x}], tasks: 9}}\n"
	owned   = "groups: {a: {match: [{user: x}], owner: {user: x, may: [set]}}}\n"
	network = "groups: {a: {match: [{user: x}], network: [{on: eth0, egress: 1Mbit/s}]}}\n"
)

// desk is where the verb is typed: a host that is files below a directory.
type desk struct {
	t           *testing.T
	root, state string
	file        string // the policy's text
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, root: linuxtest.Unpack(t, linuxtest.Text(t, "debian12")), state: t.TempDir(), file: plain}
	if err := os.MkdirAll(filepath.Join(d.root, "etc/systemd"), 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *desk) open() (*transaction.Controller, error) {
	return transaction.Open(transaction.Options{Root: d.root, State: d.state})
}

// inForce writes down that a policy is, and which one was before it while it waits to be confirmed; "" when it does
// not.
func (d *desk) inForce(revision int, text, undone string) {
	d.t.Helper()
	store, err := journal.Open(d.state, journal.Options{})
	if err == nil {
		_, err = store.Lock("test", "test")
	}
	if err == nil {
		err = store.Save(state.DocApplied, state.Applied{Revision: revision, Sources: sources(text), At: time.Now(),
			Flat: true})
	}
	if err == nil {
		err = store.Save(journal.VersionName(revision), sources(text))
	}
	if err == nil && undone != "" {
		err = errors.Join(store.Save(state.DocTrial, state.Trial{ID: "1"}), store.Save(state.DocBefore,
			state.Before{Trial: "1", Applied: &state.Applied{Sources: sources(undone)}}))
	}
	if err != nil {
		d.t.Fatal(err)
	}
	_ = store.Close()
}

// types gives what the verb prints.
func (d *desk) types(args ...string) (string, error) {
	var out bytes.Buffer
	c := Command(&out, func() (*policy.Policy, error) { return parse.Policy(sources(d.file)) }, d.open,
		func(_ any, text func()) error { text(); return nil })
	c.SetArgs(args)
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	c.SilenceUsage, c.SilenceErrors = true, true
	err := c.Execute()
	return out.String(), err
}

// writes has the drop-in brought up to date, which says something, and allows what is for these.
func (d *desk) writes(says string, allows ...string) {
	d.t.Helper()
	args, allows := split(allows)
	said, err := d.types(append([]string{"--write"}, args...)...)
	if err != nil {
		d.t.Fatal(err)
	}
	if !strings.Contains(said, says) {
		d.t.Errorf("it says %q, want %q", said, says)
	}
	text, _ := os.ReadFile(filepath.Join(d.root, File))
	for _, of := range []string{"owner of group a", "network of group a"} {
		want := strings.Contains(strings.Join(allows, ","), strings.Fields(of)[0])
		if strings.Contains(string(text), of) != want {
			d.t.Errorf("%s is in the drop-in: %v, want %v\n%s", of, !want, want, text)
		}
	}
	if _, err := os.Stat(filepath.Dir(filepath.Join(d.root, File))); (err == nil) != (len(allows) > 0) {
		d.t.Errorf("the directory of the drop-in: %v", err)
	}
}

func split(words []string) (flags, rest []string) {
	for _, w := range words {
		if strings.HasPrefix(w, "-") {
			flags = append(flags, w)
		} else {
			rest = append(rest, w)
		}
	}
	return flags, rest
}

// The drop-in follows the file and the policy in force, and is gone when neither needs it.
func TestWrite(t *testing.T) {
	d := newDesk(t)
	d.writes("as packaged allows all")
	d.file = owned
	d.writes("policy.conf is written\nit counts after: systemctl daemon-reload && systemctl restart bulkhead", "owner")
	d.writes("is up to date", "owner")
	d.inForce(1, network, "")
	d.writes("is written", "owner", "network")
	d.writes("is written", "--applied", "network")
	d.inForce(2, plain, "")
	d.file = plain
	d.writes("is up to date", "--to=1", "network")
	d.writes("is taken away", "--applied")
	d.writes("as packaged allows all")
	d.inForce(3, plain, owned)
	d.writes("is written", "owner") // it may be undone

	if err := os.RemoveAll(filepath.Join(d.root, "etc/systemd")); err != nil {
		t.Fatal(err)
	}
	d.file = owned
	d.writes("there is no systemd here")
}

// What an override asks for stays allowed.
func TestWriteForAnOverride(t *testing.T) {
	d := newDesk(t)
	d.inForce(1, plain, "")
	store, err := journal.Open(d.state, journal.Options{})
	if err == nil {
		_, err = store.Lock("test", "test")
	}
	if err == nil {
		err = store.Save(state.DocOverrides, []state.Override{{Group: "a", On: "asm:DATA", Text: "a:io.read.iops=5"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = store.Close()
	d.writes("io of group a: the headers of disks say which ASM disk group they are of", "io")
}

// What somebody else wrote stays.
func TestWriteLeavesOthersAlone(t *testing.T) {
	d := newDesk(t)
	file := filepath.Join(d.root, File)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	const theirs = "[Service]\nNice=5\n"
	if err := os.WriteFile(file, []byte(theirs), 0o644); err != nil {
		t.Fatal(err)
	}
	d.file = owned
	if _, err := d.types("--write"); err == nil || !strings.Contains(err.Error(), "was not written by bulkhead") {
		t.Errorf("it is written: %v", err)
	}
	if text, _ := os.ReadFile(file); string(text) != theirs {
		t.Errorf("it holds %s", text)
	}
	for _, args := range [][]string{{"--applied"}, {"--to=1"}, {"--print", "--write"}, {"--write", "--to=7"}} {
		if _, err := d.types(args...); err == nil {
			t.Errorf("%q is no error", args)
		}
	}
}

// A drop-in that allows more than the policy needs is named.
func TestWider(t *testing.T) {
	root := t.TempDir()
	if got := Wider(root, sources(plain)); got != "" {
		t.Errorf("without a drop-in: %s", got)
	}
	p, err := parse.Policy(sources(owned))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "etc/systemd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := update(root, sandbox.Needs(p)); err != nil {
		t.Fatal(err)
	}
	if got := Wider(root, sources(owned)); got != "" {
		t.Errorf("for the same policy: %s", got)
	}
	if got := Wider(root, sources(plain)); !strings.Contains(got, "`bulkhead unit --write && ") {
		t.Errorf("for a policy that needs nothing: %q", got)
	}
}

// plan asks the agent what its unit forbids; one of an earlier version cannot tell, and nothing is said.
func TestRefusals(t *testing.T) {
	for name, knows := range map[string]bool{"this version": true, "an earlier one": false} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "bh") // the path of a socket is short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/hello", func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(map[string]string{"state": dir})
			})
			if knows {
				mux.HandleFunc("POST /v1/forbidden", func(w http.ResponseWriter, r *http.Request) {
					var asked []string
					_ = json.NewDecoder(r.Body).Decode(&asked)
					_ = json.NewEncoder(w).Encode(map[string]any{"unit": "bulkhead.service", "forbidden": asked[:1]})
				})
			}
			sock, err := net.Listen("unix", filepath.Join(dir, "s"))
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
			go func() { _ = server.Serve(sock) }()
			t.Cleanup(func() { _ = server.Close() })
			refusals := func(dial func(context.Context) (*client.Client, error)) []plan.Refusal {
				v := &transaction.View{Snapshot: &snapshot.Snapshot{Policy: &policy.Policy{Sources: sources(owned)}}}
				Refuse(t.Context(), dial, v, transaction.DefaultPolicy)
				return v.Plan.Refusals
			}
			got := refusals(func(ctx context.Context) (*client.Client, error) {
				return client.Dial(ctx, filepath.Join(dir, "s"), dir)
			})
			if knows && (len(got) != 1 || !strings.Contains(got[0].Hint, "`bulkhead unit --write && ")) ||
				!knows && got != nil {
				t.Errorf("%+v", got)
			}
			if got := refusals(func(context.Context) (*client.Client, error) { return nil, nil }); got != nil {
				t.Errorf("no agent runs: %+v", got)
			}
		})
	}
}
