package manual_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/manual"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// pages are those of a small program.
func pages(t *testing.T) map[string]string {
	t.Helper()
	root := &cobra.Command{Use: "bulkhead VERB", Short: "a program", Version: "v1.2 (go, amd64)", Long: "It keeps " +
		"`things` apart.\n\nStart here:\n  bulkhead apply   -- do it\n  .hidden\n\nThe end."}
	root.PersistentFlags().String("policy", "/etc/policy.yaml", "the policy `file`")
	root.AddGroup(&cobra.Group{ID: "change", Title: "Change:"})
	verb := &cobra.Command{Use: "apply [GROUP…]", Short: "put it in force", Example: "  bulkhead apply a\\b",
		GroupID: "change", Run: func(*cobra.Command, []string) {}}
	verb.Flags().Bool("dry-run", false, "don't")
	below := &cobra.Command{Use: "now", Short: "at once", Run: func(*cobra.Command, []string) {}}
	hidden := &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}}
	tune := &cobra.Command{Use: "tune", Short: "tune it"}
	tune.AddCommand(below)
	root.AddCommand(verb, tune, hidden)
	all, err := manual.Pages(root, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPages(t *testing.T) {
	all := pages(t)
	for name, wants := range map[string][]string{
		"bulkhead.8": {".TH BULKHEAD 8 2026-01-02 \"bulkhead v1.2\" \"bulkhead manual\"\n",
			"bulkhead \\- a program\n",
			"It keeps \\fBthings\\fR apart.\n.PP\nStart here:\n.PP\n.RS 4\n.nf\n" +
				"bulkhead apply   \\-\\- do it\n\\&.hidden\n",
			".SS Change\n.TP\n\\fBapply\\fR\nput it in force\n", "\\fB9\\fR\n",
			".TP\n\\fB\\-\\-policy\\fR \\fIfile\\fR\nthe policy file (default \\(dq/etc/policy.yaml\\(dq)\n"},
		"bulkhead-apply.8": {".TH BULKHEAD\\-APPLY 8 ", "\\fBbulkhead apply\\fR [GROUP\\[u2026]] [flags]\n",
			".SH OPTIONS\n.TP\n\\fB\\-\\-dry\\-run\\fR\ndon\\(aqt\n", ".SH OPTIONS OF EVERY VERB\n",
			".SH EXAMPLES\n.nf\nbulkhead apply a\\eb\n.fi\n",
			"\\fBbulkhead\\fR(8), \\fBbulkhead\\-policy\\fR(5)\n"},
		"bulkhead-tune.8":     {"\\fBbulkhead tune\\fR \\fIVERB\\fR [\\fIflags\\fR]\n"},
		"bulkhead-tune-now.8": {"\\fBbulkhead\\-tune\\fR(8)"},
		"bulkhead-policy.5": {".SH SYNOPSIS\n\\fI/etc/policy.yaml\\fR\n",
			".TP\n\\fBversion\\fR\nVersion of the format. Always 1.\n"},
	} {
		for _, want := range wants {
			if !strings.Contains(all[name], want) {
				t.Errorf("%s has no %q:\n%s", name, want, all[name])
			}
		}
	}
	if len(all) != 5 {
		t.Errorf("%d pages, want 5: hidden verbs have none", len(all))
	}
}

// Every key of the schema is in the page of the policy, with what the schema says of it.
func TestPolicyPageHasEveryKey(t *testing.T) {
	plain := strings.NewReplacer(`\-`, "-", `\(aq`, "'", `\(dq`, `"`, `\fB`, "`", `\fR`, "`", "\n", " ",
		`\[u2026]`, "…", `\e`, `\`, `\&`, "")
	bare := func(text string) string { return strings.ReplaceAll(text, "`", "") }
	text := bare(plain.Replace(pages(t)["bulkhead-policy.5"]))
	schema, err := parse.Schema()
	if err != nil {
		t.Fatal(err)
	}
	var root any
	if err := json.Unmarshal(schema, &root); err != nil {
		t.Fatal(err)
	}
	count := 0
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			properties, _ := v["properties"].(map[string]any)
			for key, s := range properties {
				said, _ := s.(map[string]any)["description"].(string)
				count++
				if !regexp.MustCompile(`[ .]` + regexp.QuoteMeta(key) + `[ ,]`).MatchString(text) {
					t.Errorf("the key %s is not there", key)
				}
				if !strings.Contains(text, bare(said)) {
					t.Errorf("of the key %s it does not say %q", key, said)
				}
			}
			for _, below := range v {
				walk(below)
			}
		case []any:
			for _, below := range v {
				walk(below)
			}
		}
	}
	walk(root)
	if count < 150 {
		t.Errorf("the schema has %d keys only", count)
	}
}

// The example of the page is a policy.
func TestExampleOfThePolicyPage(t *testing.T) {
	_, text, _ := strings.Cut(pages(t)["bulkhead-policy.5"], ".SH EXAMPLE\n.RS 4\n.nf\n")
	text, _, found := strings.Cut(text, ".fi\n")
	text = strings.NewReplacer(`\-`, "-", `\(dq`, `"`).Replace(text)
	p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: text}})
	if err != nil || !found || len(p.Groups) != 2 {
		t.Errorf("%q: %v", text, err)
	}
}

// The page has the exit codes of docs/operations.md.
func TestExitStatus(t *testing.T) {
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d) \| (.*) \|$`).FindAllStringSubmatch(string(text), -1)
	if len(rows) != 10 {
		t.Fatalf("docs/operations.md has %d exit codes", len(rows))
	}
	page := strings.NewReplacer("\\fB", "`", "\\fR", "`", `\-`, "-", "\n", " ").Replace(pages(t)["bulkhead.8"])
	for _, row := range rows {
		if want := fmt.Sprintf("`%s` %s ", row[1], row[2]); !strings.Contains(page, want) {
			t.Errorf("bulkhead(8) has no %q", want)
		}
	}
}
