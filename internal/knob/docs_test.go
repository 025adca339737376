package knob

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/policy"
)

// TestDocs keeps docs/knobs.md what the table says.
func TestDocs(t *testing.T) {
	golden(t, filepath.Join("..", "..", "docs", "knobs.md"), knobsPage())
}

const docsHead = `# Knobs

Every limit that a policy can ask for, the kernel file that holds it on cgroup v1 and on cgroup v2, and what
happens where a kernel lacks it. ` + "`bulkhead discover`" + ` prints the same for the host it runs on. One file is no
limit by itself:
` + "`net_cls.classid`" + ` tells the packets of a group whose limits are on interfaces ([network.md](network.md)).

This page is generated from the table in ` + "`internal/knob`" + `:
` + "`go test ./internal/knob -run Docs -update`" + `.

## What holds each key

On a hybrid host each controller is looked for on its own: a key is held by the column of the hierarchy that its
controller is mounted in. "Since" is the kernel that brought the file; without one it is older than 3.10.

`

const docsFiles = `
## The files

- **Default** is what a new directory holds, and what is written when a limit is taken away. "as above" is the value of
  the directory above.
- **Order**: within one directory files are written from the lowest number to the highest, the first number when
  a limit is raised, the second when it is lowered.
- **Holds children** says whether the limit of a directory holds the directories below it, too.
- **Resets** names the files of the same directory whose value the kernel changes when this one is written.

`

const docsOrder = `
## The order of writes

Raises go from the top of the tree down, everything else follows from the bottom up. Within one directory:

- ` + "`memory.limit_in_bytes`" + ` never exceeds ` + "`memory.memsw.limit_in_bytes`" + ` (EINVAL): the latter is raised
  before and lowered after.
- A CPU burst never exceeds its quota (EINVAL): it is lowered before and raised after.
- On v1 a CPU limit takes two files, and a ratio of quota to period above the parent's or below a child's is refused
  (EINVAL). Period and quota are written in the order, if need be over a third quota, in which every ratio lies
  between the first and the last. Where no such way exists, as from 50 ms of 100 ms to 5 ms of 10 ms, the quota is
  lifted for the two writes in between.
- Writing ` + "`cpu.max`" + ` divides the burst by 1000 on kernels before 6.10 that have not got the fix: the burst is
  taken away before and given back after.
- ` + "`cpu.idle`" + ` makes the weight unwritable while it is set and puts it to its default when it is cleared: the
  weight goes to its default before ` + "`cpu.idle`" + ` is set, and is written after it is cleared.
- A v1 cpuset must lie within its parent's and hold its children's. One that gives up CPUs for others holds both in
  between.

Taking the steps back one by one, in reverse, gives back what was there.
`

func knobsPage() string {
	var b strings.Builder
	b.WriteString(docsHead)
	table := [][]string{{"Key", "cgroup v1", "cgroup v2"}}
	for _, key := range policy.FileKeys() {
		if v1, v2 := docFiles(key, 1), docFiles(key, 2); v1 != "" || v2 != "" {
			table = append(table, []string{code(string(key)), orDash(v1), orDash(v2)})
		}
	}
	table = append(table, []string{code(string(policy.KeyOOMScoreAdj)), "`/proc/PID/oom_score_adj`, of each member",
		"the same"})
	writeTable(&b, table)

	b.WriteString(docsFiles)
	for version := 1; version <= 2; version++ {
		fmt.Fprintf(&b, "### cgroup v%d\n\n", version)
		table := [][]string{{"File", "Unit", "Default", "Order", "Holds children", "Resets", "Risk"}}
		for _, r := range Table() {
			if r.Version == version {
				table = append(table, docRow(r))
			}
		}
		writeTable(&b, table)
		b.WriteString("\n")
	}

	b.WriteString("## What a limit does not reach\n\n")
	table = [][]string{{"File", "What to know"}}
	for _, r := range Table() {
		for _, text := range docReach(r) {
			table = append(table, []string{docName(r), text})
		}
	}
	writeTable(&b, table)

	b.WriteString("\n## What is used instead\n\nWhere the file is missing, `plan` and `status` say that the limit is " +
		"not enforced, and what stands in for it:\n\n")
	table = [][]string{{"Key", "Missing", "Instead"}}
	for _, g := range gaps {
		table = append(table, []string{code(string(g.key)), g.reason, orNothing(g.instead)})
	}
	for _, r := range Table() {
		var where []string
		if r.Late {
			where = append(where, "before kernel "+r.Since)
		}
		if r.Option != "" {
			text := "without " + r.Option
			if r.OptionUntil != "" {
				text += "; always there since kernel " + r.OptionUntil
			}
			where = append(where, text)
		}
		if len(where) > 0 {
			table = append(table, []string{code(string(r.Keys[0])),
				fmt.Sprintf("%s on v%d %s", code(r.File), r.Version, strings.Join(where, "; ")), orNothing(r.Instead)})
		}
	}
	table = append(table,
		[]string{"`memory.oom: pause`", "cgroup v2 does not pause a group that is out of memory", "kill"},
		[]string{"`memory.oom: kill-group`", "cgroup v1 does not kill a group as a whole", "kill"},
		[]string{"`memory.swap` without `memory.max`", "cgroup v1 limits memory and swap in one number", nothing},
		[]string{"`oom_score_adj` below a process's lowest so far", "without CAP_SYS_RESOURCE", nothing})
	writeTable(&b, table)
	b.WriteString(docsOrder)
	return b.String()
}

// docFiles names the files that hold a key on one version, with the kernel that brought them.
func docFiles(key policy.Key, version int) string {
	var files []string
	for _, r := range serving(key, version) {
		text := docName(r)
		if r.Since != "" {
			text += " (since " + r.Since + ")"
		}
		files = append(files, text)
	}
	return strings.Join(files, ", ")
}

func docRow(r *Row) []string {
	value := code(r.Default)
	switch {
	case r.Default == "":
		value = "as above"
	case r.Inherits:
		value += ", at first as above"
	case r.PerDevice:
		value = "no line"
	}
	var resets []string
	for _, file := range r.Resets {
		resets = append(resets, code(file))
	}
	return []string{docName(r), r.Unit, value, fmt.Sprintf("%d, %d", r.Up, r.Down),
		map[bool]string{true: "yes", false: "no"}[r.Descends],
		orDash(strings.Join(resets, ", ")), orDash(string(r.Risk))}
}

func docReach(r *Row) []string {
	texts := []string{r.Reach}
	if r.Seed {
		texts = append(texts,
			"written as soon as the directory is made, from the one above if need be: an empty set takes no process")
	}
	if r.Covers {
		texts = append(texts, "counts only as far as every group above has at least the sum of those below")
	}
	if r.Nested != "" {
		texts = append(texts, "kernels before "+r.Nested+" refuse it below another group")
	}
	if r.PerDevice && !r.Descends {
		texts = append(texts,
			"holds the processes of that directory only: all members of a group with an io limit sit in one directory")
	}
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}

func docName(r *Row) string {
	name := r.File
	if r.PerSize {
		name = r.Name("SIZE")
	}
	return code(name)
}

func code(text string) string { return "`" + text + "`" }

func orDash(text string) string {
	if text == "" {
		return "–"
	}
	return text
}

// writeTable writes a Markdown table; the first row is its head.
func writeTable(b *strings.Builder, rows [][]string) {
	for i, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("| --- ", len(row)) + "|\n")
		}
	}
}
