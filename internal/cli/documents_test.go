package cli

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/scenario"
	"bulkhead/internal/testdoc"
)

const top = "../.."

// Every code block of README and docs is run by a test that it names, is judged here, or says that it is an
// illustration. What is judged here are policies, scenarios, and commands of bulkhead and make: that they are sound,
// and that verbs, flags and targets are there. Commands that are run, and those within sentences, are looked up too.
func TestEveryBlockOfTheDocuments(t *testing.T) {
	d := newDocuments(t)
	illustrations, all := 0, 0
	for file, text := range d.texts {
		for _, b := range testdoc.Blocks(text) {
			all++
			if b.Illustration {
				illustrations++
			}
			if problem := d.judge(file, b); problem != nil {
				t.Errorf("%s:%d: %v", file, b.Line, problem)
			}
		}
		for _, span := range inline.FindAllStringSubmatch(prose(text), -1) {
			if err := d.bulkhead(span[1], false); err != nil {
				t.Errorf("%s: `bulkhead %s`: %v", file, span[1], err)
			}
		}
	}
	t.Logf("%d blocks, of which %d are illustrations", all, illustrations)
}

// What is wrong is found.
func TestBlocksAreJudged(t *testing.T) {
	d := newDocuments(t)
	for _, bad := range []string{
		"```\nsystemctl restart x\n```", "```\nbulkhead aply\n```", "```\nbulkhead plan --exit-cod\n```",
		"```\nbulkhead check && bulkhead nosuch\n```", "```\nbulkhead explain 1 2 3\n```", "```\nmake nosuch\n```",
		"```\nmake packages NOSUCH=1\n```", "```go\nx := 1\n```", "```yaml\nversion: 1\ngroup: {}\n```",
		"```yaml\nhost: {reserv: {cpu: 1}}\n```", "<!-- run: TestNoSuch -->\n```\nx\n```",
		"<!-- run: TestParseModes -->\n```\nmake test\n```", // it knows nothing of README
		"<!-- run: TestWalk -->\n```\nbulkhead aply\n```", "<!-- illustration -->\n```\n$ bulkhead aply\n```",
		"```sh\ngo test ./internal/nosuch\n```",
		"```yaml\nname: x\narms: {}\nnosuch: 1\n```",
	} {
		for _, b := range testdoc.Blocks(bad) {
			if d.judge("README.md", b) == nil {
				t.Errorf("it passes:\n%s", bad)
			}
		}
	}
	for _, good := range []string{
		"<!-- illustration -->\n```\nnosuch\nbulkhead plan\n```", "<!-- run: TestWalk -->\n```\nmkdir -p x\n```",
		"```\nmake packages ARCHES=amd64 MAINTAINER='a <b@c>'\n```", "```yaml\nhost: {reserve: {cpu: 1}}\n```",
		"```sh\nbulkhead explain $(pidof -s mariadbd) > x   # why\n```",
	} {
		for _, b := range testdoc.Blocks(good) {
			if err := d.judge("README.md", b); err != nil {
				t.Errorf("%v:\n%s", err, good)
			}
		}
	}
}

// documents are README and what is below docs, and what they may speak of.
type documents struct {
	texts    map[string]string
	makefile string
	tests    map[string][]string // by name, the packages' test files that stand beside it, each as text
}

func newDocuments(t *testing.T) *documents {
	t.Helper()
	d := &documents{texts: map[string]string{}, tests: map[string][]string{}}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	d.texts["README.md"] = read("README.md")
	pages, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		name := "docs/" + filepath.Base(page)
		d.texts[name] = read(name)
	}
	d.makefile = read("Makefile") + read("test/lab/lab.mk")
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	beside := map[string]string{}
	err = filepath.WalkDir(top, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() && (strings.HasPrefix(e.Name(), ".") && e.Name() != "..") {
			return err
		}
		if strings.HasSuffix(name, "_test.go") {
			text, err := os.ReadFile(name)
			beside[filepath.Dir(name)] += string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range beside {
		for _, m := range function.FindAllStringSubmatch(text, -1) {
			d.tests[m[1]] = append(d.tests[m[1]], text)
		}
	}
	return d
}

var (
	inline    = regexp.MustCompile("`bulkhead ([^`\n]+)`")
	fenced    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	separator = regexp.MustCompile(`&&|;|\|`)
	inQuotes  = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	inner     = regexp.MustCompile(`\$\([^)]*\)`)
	redirect  = regexp.MustCompile(`\d?>+ ?\S+`)
)

const hint = "mark it: <!-- run: TestNAME --> or <!-- illustration --> (internal/testdoc)"

// prose is a document without its blocks.
func prose(text string) string { return fenced.ReplaceAllString(text, "") }

// judge says what is wrong with a block.
func (d *documents) judge(file string, b testdoc.Block) error {
	if b.Illustration {
		for line := range strings.Lines(b.Text) {
			if rest, is := strings.CutPrefix(strings.TrimPrefix(line, "$ "), "bulkhead "); is {
				if err := d.bulkhead(rest, false); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, test := range b.Run {
		if !slices.ContainsFunc(d.tests[test], func(text string) bool {
			return strings.Contains(text, filepath.Base(file))
		}) {
			return fmt.Errorf("there is no %s in a package whose tests read %s", test, filepath.Base(file))
		}
	}
	language, _, _ := strings.Cut(b.Info, " ")
	switch language {
	case "yaml":
		return sound(b.Text)
	case "", "sh":
		for _, line := range b.Commands() {
			if err := d.command(line, len(b.Run) > 0); err != nil {
				return err
			}
		}
		return nil
	}
	if len(b.Run) == 0 {
		return fmt.Errorf("nothing runs a block of %q; "+hint, b.Info)
	}
	return nil
}

// sound reads a policy, a part of one, or a scenario, as the program does.
func sound(text string) error {
	if strings.Contains(text, "\narms:") {
		_, err := scenario.Parse(policy.Source{Path: "example", Text: text})
		return err
	}
	if !strings.Contains(text, "version: 1") {
		text = "version: 1\n" + text
	}
	if !strings.Contains(text, "\ngroups:") {
		text += "groups: {}\n"
	}
	_, err := parse.Policy([]policy.Source{{Path: "example", Text: text}})
	return err
}

// command looks up the programs of a line. Others than bulkhead and make are fine where a test runs the line.
func (d *documents) command(line string, run bool) error {
	line = inQuotes.ReplaceAllString(inner.ReplaceAllString(line, "1"), "1") // no verb or flag is quoted
	line = redirect.ReplaceAllString(line, "")
	for _, part := range separator.Split(line, -1) {
		words := strings.Fields(part)
		if len(words) == 0 {
			continue
		}
		var err error
		switch {
		case words[0] == "bulkhead":
			err = d.bulkhead(strings.TrimPrefix(strings.TrimSpace(part), "bulkhead"), true)
		case words[0] == "make":
			err = d.make(words[1:])
		case words[0] == "go":
			err = packagesThere(words)
		case !run:
			err = fmt.Errorf("nothing runs %q; "+hint, words[0])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(part), err)
		}
	}
	return nil
}

// bulkhead looks for the verb, its flags and, of whole commands, the number of arguments.
func (d *documents) bulkhead(line string, whole bool) error {
	args := strings.Fields(inQuotes.ReplaceAllString(line, "1"))
	root := rootCmd(&session{output: output{out: &bytes.Buffer{}, err: &bytes.Buffer{}}})
	verb, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if verb == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("no verb %q", rest[0])
	}
	if !whole {
		for _, arg := range rest {
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			if arg == "--" {
				break
			}
			if strings.HasPrefix(arg, "--") && verb.Flag(name) == nil && name != "help" {
				return fmt.Errorf("%s has no flag --%s", verb.CommandPath(), name)
			}
		}
		return nil
	}
	verb.InitDefaultHelpFlag()
	if err := verb.ParseFlags(rest); err != nil {
		return err
	}
	return verb.ValidateArgs(verb.Flags().Args())
}

// packagesThere looks for the packages that go is told of.
func packagesThere(words []string) error {
	for _, w := range words {
		if strings.HasPrefix(w, "./") {
			if _, err := os.Stat(filepath.Join(top, w)); err != nil {
				return err
			}
		}
	}
	return nil
}

// make looks for targets and variables.
func (d *documents) make(words []string) error {
	for _, w := range words {
		name, _, variable := strings.Cut(w, "=")
		pattern := `(?m)^` + regexp.QuoteMeta(w) + `:`
		if variable {
			pattern = `\b` + regexp.QuoteMeta(name) + `\b`
		}
		if !regexp.MustCompile(pattern).MatchString(d.makefile) {
			return fmt.Errorf("the Makefile has no %s", w)
		}
	}
	return nil
}
