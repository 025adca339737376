package hygiene

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var (
	update = flag.Bool("update", false, "write ratchet.txt and imports.txt anew; what got worse is an error")
	raise  = flag.Bool("raise", false, "with -update: also take what got worse")
)

const ratchetFile = "ratchet.txt"

const ratchetHead = `# What breaks a bound of bounds_test.go today. Each line is a bound, an offender and its number:
#
`

const ratchetTail = `#
# An offender that stands here may not get worse. When it gets better or goes away, the line must follow:
#
#     go test ./internal/hygiene -update
#
# does that, also after moves, splits and renames: it takes new lines and higher numbers as long as the sum of a bound
# does not rise. A rise needs -update -raise, and a reason in the commit. After a conflict of merges leave the markers
# in and run it. Numbers of files and packages are rounded up, so that small edits need no update.

`

// ratchet holds a number for each offender of each bound.
type ratchet map[string]map[string]int

// parseRatchet reads the file. With the markers of a merge in it the higher of two numbers counts.
func parseRatchet(text []byte) (ratchet, error) {
	r := ratchet{}
	for _, b := range bounds {
		r[b.name] = map[string]int{}
	}
	for line := range bytes.Lines(text) {
		line := strings.TrimSpace(string(line))
		if line == "" || strings.HasPrefix(line, "#") || isMarker(line) {
			continue
		}
		var name, offender string
		var n int
		if _, err := fmt.Sscanf(line, "%s %s %d", &name, &offender, &n); err != nil || r[name] == nil {
			return nil, fmt.Errorf("read %s: line %q: want a bound, an offender and a number", ratchetFile, line)
		}
		r[name][offender] = max(r[name][offender], n)
	}
	return r, nil
}

// isMarker recognises the lines that git puts around a conflict.
func isMarker(line string) bool {
	for _, m := range []string{"<<<<<<<", "|||||||", "=======", ">>>>>>>"} {
		if strings.HasPrefix(line, m) {
			return true
		}
	}
	return false
}

func (r ratchet) String() string {
	var b strings.Builder
	b.WriteString(ratchetHead)
	for _, bound := range bounds {
		fmt.Fprintf(&b, "#     %-8s %s: at most %d\n", bound.name, bound.what, bound.max)
	}
	b.WriteString(ratchetTail)
	for _, bound := range bounds {
		for _, offender := range sortedKeys(r[bound.name]) {
			fmt.Fprintf(&b, "%s %s %d\n", bound.name, offender, r[bound.name][offender])
		}
	}
	return b.String()
}

// compare says what got worse and what got better from one ratchet to another.
func (r ratchet) compare(now ratchet) (worse, better []string) {
	for _, b := range bounds {
		for _, offender := range sortedKeys(now[b.name]) {
			if n, was := now[b.name][offender], max(r[b.name][offender], b.max); n > was {
				worse = append(worse, fmt.Sprintf("%s: %d %s, and not more than %d", offender, n, b.what, was))
			}
		}
		for _, offender := range sortedKeys(r[b.name]) {
			if n, was := now[b.name][offender], r[b.name][offender]; n < was {
				better = append(better, fmt.Sprintf("%s %s: below %d", b.name, offender, was))
			}
		}
	}
	return worse, better
}

// risen says which bounds are broken by more in all than before.
func (r ratchet) risen(now ratchet) []string {
	var risen []string
	for _, b := range bounds {
		sum := func(of map[string]int) (n int) {
			for _, each := range of {
				n += each - b.max
			}
			return n
		}
		if was, is := sum(r[b.name]), sum(now[b.name]); is > was {
			risen = append(risen, fmt.Sprintf("%s: %d in all beyond the bound, %d before", b.name, is, was))
		}
	}
	return risen
}

func TestRatchet(t *testing.T) {
	text, err := os.ReadFile(ratchetFile)
	if err != nil {
		t.Fatal(err)
	}
	stands, err := parseRatchet(text)
	if err != nil {
		t.Fatal(err)
	}
	now, all := ratchet{}, sources(t)
	for _, b := range bounds {
		now[b.name] = b.offenders(all)
	}
	worse, better := stands.compare(now)
	if *update {
		if risen := stands.risen(now); len(risen) > 0 && !*raise {
			t.Fatalf("%s is left alone, as this got worse (-raise takes it):\n%s\nwith\n%s",
				ratchetFile, strings.Join(risen, "\n"), strings.Join(worse, "\n"))
		}
		if err := os.WriteFile(ratchetFile, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, w := range worse {
		t.Error(w)
	}
	for _, b := range better {
		t.Error(b)
	}
	if !t.Failed() && string(text) != now.String() {
		t.Errorf("%s is not as it is written", ratchetFile)
	}
	if t.Failed() {
		t.Log("hint: mend what got worse. For the rest, and after moves: go test ./internal/hygiene -update")
	}
}

func TestRatchetComparesAndMerges(t *testing.T) {
	was, err := parseRatchet([]byte("# head\nfile a.go 600\n<<<<<<< ours\nfile b.go 700\n=======\nfile b.go " +
		"650\n>>>>>>> x\n"))
	if err != nil {
		t.Fatal(err)
	}
	of := func(files map[string]int) ratchet { return ratchet{"file": files} }
	if worse, better := was.compare(of(map[string]int{"a.go": 600, "b.go": 700})); len(worse)+len(better) > 0 {
		t.Errorf("nothing changed: worse %q, better %q", worse, better)
	}
	for _, c := range []struct {
		now                  map[string]int
		worse, better, risen int
	}{
		{map[string]int{"a.go": 625, "b.go": 700}, 1, 0, 1}, // grown
		{map[string]int{"a.go": 575, "b.go": 700}, 0, 1, 0}, // shrunk
		{map[string]int{"b.go": 700}, 0, 1, 0},              // gone
		{map[string]int{"c.go": 600, "b.go": 700}, 1, 1, 0}, // renamed
		{map[string]int{"a.go": 600, "b.go": 700, "c.go": 525}, 1, 0, 1},
	} {
		worse, better := was.compare(of(c.now))
		if risen := was.risen(of(c.now)); len(worse) != c.worse || len(better) != c.better || len(risen) != c.risen {
			t.Errorf("%v: worse %q, better %q, risen %q", c.now, worse, better, risen)
		}
	}
	if _, err := parseRatchet([]byte("file a.go many\n")); err == nil {
		t.Error("a line without a number is read")
	}
}
