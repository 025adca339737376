package render

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// Reply prints what a changing verb did; warnings go to errw.
func Reply(out, errw io.Writer, r *api.Reply, q api.Request) {
	printRecovered(out, r)
	switch {
	case r.Text != "":
		Println(out, r.Text)
	case len(r.Plan.Steps) > 0:
		Println(out, summary(r))
	case r.Recorded:
		Println(out, recorded(r, q))
	case r.Recovered != "":
	default:
		Println(out, "nothing to do: the host already is as asked")
	}
	notes := concerning(r, q)
	printNotes(out, slices.DeleteFunc(slices.Clone(notes), func(n plan.Note) bool { return !n.Void }))
	for _, p := range r.Problems {
		Printf(errw, "warning: the applied policy has a problem now: %s\n", p)
	}
	for _, s := range r.Skipped {
		Println(out, "skipped:", s)
	}
	for _, n := range r.Notes {
		Println(out, "note:", n)
	}
	printTrial(out, r, q)
	for _, o := range r.Overrides {
		Println(out, "in force over the policy:", o)
	}
	printNotes(out, slices.DeleteFunc(notes, func(n plan.Note) bool { return n.Void }))
}

// DryRun prints what a changing verb would do; text gives its plan.
func DryRun(out io.Writer, r *api.Reply, text func() (string, error)) error {
	printRecovered(out, r)
	if r.Text != "" {
		Println(out, r.Text)
		return nil
	}
	would, err := text()
	if err != nil {
		return err
	}
	_, _ = io.WriteString(out, would)
	Println(out, "dry run: nothing was changed")
	return nil
}

func printRecovered(out io.Writer, r *api.Reply) {
	if r.Recovered != "" && r.Recovered != r.Text {
		Println(out, r.Recovered)
	}
}

// printTrial says what may still undo the change.
func printTrial(out io.Writer, r *api.Reply, q api.Request) {
	if !r.Confirm.IsZero() {
		Printf(out, "on trial: undone at %s unless `bulkhead confirm` comes before; `bulkhead rollback` "+
			"undoes it now\n", r.Confirm.Local().Format(time.DateTime))
	}
	switch {
	case r.Guarded.IsZero():
	case q.Canary != "":
		Printf(out, "canary: the rest of the policy is applied at %s, unless this does group %s harm\n",
			r.Guarded.Local().Format(time.DateTime), q.Canary)
	case q.EnforceFor > 0:
		Printf(out, "watched until %s: what SELinux denies %s makes it permissive again\n",
			r.Guarded.Local().Format(time.DateTime), strings.Join(q.Enforce, ", "))
	default:
		Printf(out, "guarded until %s: undone when it does one of the groups harm that the policy's "+
			"guard watches\n", r.Guarded.Local().Format(time.DateTime))
	}
}

// recorded says what was written down with nothing to change on the host.
func recorded(r *api.Reply, q api.Request) string {
	switch {
	case q.Verb == "apply" || q.Verb == "rollback":
		return "recorded as " + revision(r) + "; no change was needed on the host"
	case q.Verb == "set" && len(onlyNotEnforced(concerning(r, q))) > 0:
		return "recorded; there is nothing to write"
	}
	return "recorded; no change was needed on the host"
}

// revision names the revision in force, and after a rollback the one that it repeats.
func revision(r *api.Reply) string {
	text := fmt.Sprintf("revision %d", r.Revision)
	if r.Like > 0 && r.Like != r.Revision {
		text += fmt.Sprintf(", which repeats revision %d", r.Like)
	}
	return text
}

// concerning keeps the notes that a verb has to do with. What is not enforced, and what is to know of a policy, apply
// and rollback say when they put another one in force; set and move say what is about the limits, groups and processes
// that they name. `notes` has them all.
func concerning(r *api.Reply, q api.Request) []plan.Note {
	return slices.DeleteFunc(slices.Clone(r.Plan.Notes), func(n plan.Note) bool {
		named := func(prefix string) bool {
			return slices.ContainsFunc(q.Assign, func(text string) bool { return strings.HasPrefix(text, prefix) })
		}
		whole := q.Verb == "apply" || q.Verb == "rollback"
		switch {
		case n.PID != 0, q.Verb == "release":
			return n.Key != ""
		case n.Void:
			return !whole && !named(n.Group+":"+string(n.Key))
		case whole && !r.Changed && !r.Recorded:
			return true
		case n.Key == "":
			return !whole && (n.Group == "" || n.Group != q.Group && !named(n.Group+":"))
		case !n.Broken() && !n.Harm:
			return true
		}
		return !whole && !named(n.Group+":"+string(n.Key))
	})
}

func onlyNotEnforced(notes []plan.Note) []plan.Note {
	var hard []plan.Note
	for _, n := range notes {
		if n.NotEnforced {
			hard = append(hard, n)
		}
	}
	return hard
}

// summary counts what a plan did, in one line.
func summary(r *api.Reply) string {
	n := r.Plan.Count()
	var parts []string
	for _, part := range []struct {
		n         int
		one, many string
	}{
		{n["mkdir"], "directory made", "directories made"},
		{n["write"] + n["set"] + n["oom_score_adj"], "value written", "values written"},
		{n["network"], "change of the network", "changes of the network"},
		{n[""], "process moved", "processes moved"},
		{n["rmdir"], "directory removed", "directories removed"},
	} {
		if part.n > 0 {
			parts = append(parts, Count(part.n, part.one, part.many))
		}
	}
	text := "done: " + strings.Join(parts, ", ")
	if r.Revision > 0 {
		text += "; " + revision(r)
	}
	return text
}

// Check prints that the policy of a file is sound, and what there is to know about it.
func Check(out io.Writer, file string, c CheckView) {
	Printf(out, "%s: sound; %s on this host\n", file, Count(c.Groups, "group", "groups"))
	for _, n := range c.Remarks {
		word := "note"
		if n.Void {
			word = "VOID"
		}
		Printf(out, "%s: %s: %s\n", word, n.Pos, n.Text)
	}
	hard := slices.DeleteFunc(slices.Clone(c.Notes), func(n plan.Note) bool { return !n.Broken() && !n.Harm })
	printNotes(out, hard)
	if rest := len(c.Notes) - len(hard); rest > 0 {
		Printf(out, "%s more on this host: `bulkhead notes`\n", Count(rest, "remark", "remarks"))
	}
}

// Notes prints all that is to know of a policy on this host.
func Notes(out io.Writer, c CheckView) {
	if len(c.Notes) == 0 {
		Println(out, "no remarks: this host holds all of the policy")
	}
	printNotes(out, c.Notes)
}

// printNotes prints what a person should know, what is not enforced first.
func printNotes(out io.Writer, notes []plan.Note) {
	word := func(n plan.Note) string {
		switch {
		case n.Void:
			return "VOID"
		case n.NotEnforced:
			return "NOT ENFORCED HERE"
		case n.Partly:
			return "ENFORCED IN PART"
		case n.Harm:
			return "WARNING"
		}
		return "note"
	}
	for _, now := range []string{"VOID", "NOT ENFORCED HERE", "ENFORCED IN PART", "WARNING", "note"} {
		for _, n := range notes {
			if word(n) == now {
				Printf(out, "%s: %s\n", now, noteText(n))
			}
		}
	}
}

func noteText(n plan.Note) string {
	text := n.Text
	if n.Key != "" && !n.Void {
		text = string(n.Key) + ": " + text
	}
	if n.Group != "" {
		text = n.Group + ": " + text
	}
	return text
}

// CheckView is the JSON of check.
type CheckView struct {
	Groups  int           `json:"groups"`
	Notes   []plan.Note   `json:"notes"`
	Remarks []policy.Note `json:"remarks"`
}
