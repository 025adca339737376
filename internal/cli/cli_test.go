package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"bulkhead/internal/probe"
	"bulkhead/internal/verify"
)

// Every verb says in one line what it does, and which flags it takes.
func TestEveryVerbExplainsItself(t *testing.T) {
	changing := []string{"apply", "set", "unset", "move", "freeze", "thaw", "release", "rollback"}
	root := rootCmd(&session{output: output{out: &bytes.Buffer{}, err: &bytes.Buffer{}}})
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") || len(c.Short) > 90 {
			t.Errorf("%s: its line is %q", c.CommandPath(), c.Short)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%s --%s: %q", c.CommandPath(), f.Name, f.Usage)
			}
		})
		if slices.Contains(changing, c.Name()) && !c.Parent().HasParent() {
			for _, name := range []string{"dry-run", "reason", "force"} {
				if c.Flags().Lookup(name) == nil {
					t.Errorf("%s has no --%s", c.Name(), name)
				}
			}
		}
	}
	walk(root)
	for _, name := range changing {
		if c, _, err := root.Find([]string{name}); err != nil || c.Name() != name {
			t.Errorf("no verb %q: %v", name, err)
		}
	}
}

func TestAnswersAndErrorsAreApart(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		out  bool
	}{
		{[]string{"version"}, 0, true},
		{[]string{"--help"}, 0, true},
		{[]string{"help", "set"}, 0, true},
		{[]string{"nosuch"}, 2, false},
		{[]string{"check", "--policy", "no-such-file.yaml"}, 2, false},
	} {
		var out, errw bytes.Buffer
		code := runVerb(context.Background(), c.args, strings.NewReader(""), &out, &errw)
		if code != c.code || (out.Len() > 0) != c.out || (code != 0) != strings.Contains(errw.String(), "bulkhead: ") {
			t.Errorf("%q: exit code %d\nstdout: %s\nstderr: %s", c.args, code, &out, &errw)
		}
	}
}

// A limit that is not enforced is exit code 4, as text and as JSON.
func TestExitCodeOfVerify(t *testing.T) {
	verified := []verify.Reading{{Group: "a", Limit: verify.Limit{Key: "cpu.limit", OK: true}},
		{Group: "a"}}
	probed := []verify.Result{{Group: "a", How: "alone", Verdict: probe.Held},
		{Group: "a", How: "alone", Verdict: probe.NotEnforced}}
	for _, json := range []bool{false, true} {
		o := &output{json: json, out: io.Discard, stdout: io.Discard}
		if err := errors.Join(answerVerified(o, verified[:1]), answerProbed(o, probed[:1])); err != nil {
			t.Errorf("all is enforced: %v", err)
		}
		for _, err := range []error{answerVerified(o, verified), answerProbed(o, probed)} {
			if want := (exit{4}); err != want {
				t.Errorf("%v, want %v", err, want)
			}
		}
	}
}

// A signal ends the verbs that change nothing wherever they wait; the others undo or clean up first.
func TestOnlyReads(t *testing.T) {
	for line, want := range map[string]bool{
		"status --watch": true, "--state /x check": true, "discover disks": true, "explain 1": true, "history": true,
		"suspects a": true, "suspects a --prove b": false, "suspects a --prove=b": false,
		"apply": false, "import cgconfig x": true, "export slice": true,
		"verify --probe": false, "release --all": false, "run a -- status": false, "agent": false,
		"apply --dry-run": true, "set a:tasks=5 --dry-run": true, "run a -- apply --dry-run": false,
		"zfs check": true, "zfs list a": true, "zfs snapshot a list": false, "zfs prune": false,
	} {
		if got := onlyReads(strings.Fields(line)); got != want {
			t.Errorf("%s: %t", line, got)
		}
	}
}
