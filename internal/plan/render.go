package plan

import (
	"cmp"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/terminal"
)

// Form is how much of a plan is printed.
type Form string

// The forms there are.
const (
	FormLong    Form = ""        // each step with its file, reason and undo
	FormBrief   Form = "brief"   // by group a line for each value that changes; directories and moves together
	FormDiff    Form = "diff"    // the values before and after by file, as diff -u prints them
	FormSummary Form = "summary" // a line for each group
)

// RenderOptions say how to print a plan. The zero value prints directories as "hierarchy:/path" and
// values as the kernel writes them.
type RenderOptions struct {
	// Facts give the mount points and the units of values.
	Facts *host.Facts
	// Path gives the absolute path of a directory; nil takes the mount points of Facts.
	Path func(cgroup.Dir) string
	// Root is the name of our root group; "" when there is none.
	Root string
	Form Form
	// Width is what text is wrapped at, columns; 0 is renderWidth. Paths are never broken.
	Width int
}

// renderWidth is the width that text is wrapped at unless another one is asked for.
const renderWidth = 100

type renderer struct {
	plan    Plan
	options RenderOptions
	b       strings.Builder
}

// line prints one line. Names of processes and directories are whatever somebody chose: they must not
// end the line or steer the terminal.
func (r *renderer) line(format string, args ...any) {
	text := strings.TrimRight(terminal.Printable(fmt.Sprintf(format, args...)), " ")
	r.b.WriteString(text + "\n")
}

// wrapped prints text with a hanging indent, broken between words.
func (r *renderer) wrapped(indent int, text string) {
	pad := strings.Repeat(" ", indent)
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && indent+utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > cmp.Or(r.options.Width,
			renderWidth) {
			r.line("%s%s", pad, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	r.line("%s%s", pad, line)
}

// heading starts a section.
func (r *renderer) heading(text string) {
	if r.b.Len() > 0 {
		r.line("")
	}
	r.line("%s", text)
}

// total counts the steps by what they do.
func (r *renderer) total() string {
	counts := r.plan.Count()
	var parts []string
	for _, op := range []string{"drop-in", "mkdir", "keep", "write", "set", "network", "move", "oom_score_adj", "rmdir",
		"revert"} {
		if counts[op] > 0 {
			part := fmt.Sprintf("%d %s", counts[op], op)
			if op == "move" {
				part += " of " + policy.Counted(counts[""], "process")
			}
			parts = append(parts, part)
		}
	}
	return policy.Counted(len(r.plan.Steps), "step") + ": " + strings.Join(parts, ", ")
}

// byGroup gives the groups in the order in which they first appear, and the numbers of their steps.
func (r *renderer) byGroup() (groups []string, steps map[string][]int) {
	steps = make(map[string][]int)
	for i, s := range r.plan.Steps {
		group := s.Group
		if r.options.Form != FormLong {
			group = gathered(group)
		}
		if steps[group] == nil {
			groups = append(groups, group)
		}
		steps[group] = append(steps[group], i)
	}
	return groups, steps
}

// gathered is the name under which a group is told: all sessions of processes that match no rule are one.
func gathered(group string) string {
	if strings.HasPrefix(group, "others/") {
		return "others/*"
	}
	return group
}

// groupTitle names a group; our root group by its own name, and what concerns no group as the host.
func (r *renderer) groupTitle(group string) string {
	switch {
	case group != layout.RootGroup:
		return group
	case r.options.Root != "":
		return r.options.Root + " (the root group)"
	}
	return "the host"
}

// run counts how many of the steps can be told together: directories made or removed for one reason, and the
// moves of one process in several hierarchies.
func (r *renderer) run(steps []int) int {
	first := r.plan.Steps[steps[0]]
	n := 1
	for ; n < len(steps); n++ {
		next := r.plan.Steps[steps[n]]
		together := first.Moves() && next.Moves() && next.PID() == first.PID() || first.Makes() && next.Makes() ||
			first.Removes() && next.Removes()
		if !together || next.Reason != first.Reason {
			break
		}
	}
	return n
}

// path is the absolute path of a directory.
func (r *renderer) path(d cgroup.Dir) string {
	if r.options.Path != nil {
		return r.options.Path(d)
	}
	if r.options.Facts != nil {
		if h, ok := r.options.Facts.Hierarchy(d.Hierarchy); ok {
			return path.Join(h.Mount, d.Path)
		}
	}
	return d.String()
}

// device names a block device: "8:16 (sdb)".
func (r *renderer) device(number string) string {
	if r.options.Facts != nil {
		if d, ok := r.options.Facts.Device(number); ok && d.Name != "" {
			return number + " (" + d.Name + ")"
		}
	}
	return number
}

// notes prints one kind of notes.
func (r *renderer) notes(title string, of func(Note) bool) {
	first := true
	for _, n := range r.plan.Notes {
		if !of(n) {
			continue
		}
		if first {
			r.heading(title)
			first = false
		}
		about := n.Group
		if about == layout.RootGroup && n.Key == "" {
			about = "all"
		}
		if n.Key != "" && !n.Void {
			about = strings.TrimPrefix(about+" "+string(n.Key), " ")
		}
		r.item(about + ": " + n.Text)
	}
}

// item prints one entry of a list; its further lines are indented.
func (r *renderer) item(text string) {
	inner := renderer{options: r.options}
	inner.wrapped(4, text)
	r.b.WriteString("  - " + strings.TrimLeft(inner.b.String(), " "))
}

func (r *renderer) refusals() {
	for i, f := range r.plan.Refusals {
		if i == 0 {
			r.heading("refused, unless --force is given with a --reason")
		}
		r.item(r.groupTitle(f.Group) + ": " + f.Reason)
		if f.Hint != "" {
			r.wrapped(4, "hint: "+f.Hint)
		}
	}
}

// shares prints the table of effective CPU shares.
func (r *renderer) shares() {
	if len(r.plan.Shares) == 0 {
		return
	}
	r.heading("CPU that each group can count on when every group wants all there is, cores")
	table := [][]string{{"group", "asked", "limit", "guaranteed", "% of host"}}
	var shares []Share
	for _, s := range r.plan.Shares {
		if group := gathered(s.Group); group != s.Group && r.options.Form != FormLong {
			if last := len(shares) - 1; last >= 0 && gathered(shares[last].Group) == group {
				shares[last].Group = group
				shares[last].Guaranteed += s.Guaranteed
				shares[last].Percent += s.Percent
				continue
			}
		}
		shares = append(shares, s)
	}
	for _, s := range shares {
		limit := "none"
		if s.Limit > 0 {
			limit = fmt.Sprintf("%.4g", s.Limit)
		}
		table = append(table, []string{
			cmp.Or(s.Group, r.options.Root), cmp.Or(s.Asked, "-"), limit,
			fmt.Sprintf("%.2f", s.Guaranteed), fmt.Sprintf("%.1f", s.Percent),
		})
	}
	r.columns(table, 3)
	most := r.plan.Shares[0].Against
	r.wrapped(2, "against "+most+
		"; a weight counts only among siblings, and what a limited group leaves goes to the others")
	for _, s := range shares {
		if s.Against != most {
			r.wrapped(2, s.Group+": against "+s.Against)
		}
	}
}

// columns prints a table; columns from right on are aligned to the right.
func (r *renderer) columns(table [][]string, right int) {
	widths := make([]int, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range table {
		line := " "
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i >= right {
				line += " " + pad + cell + " "
			} else {
				line += " " + cell + pad + " "
			}
		}
		r.line("%s", line)
	}
}
