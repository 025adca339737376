package render

import (
	"io"

	"bulkhead/internal/convert"
)

// Import prints the policy on out, and on errw what is not in it.
func Import(out, errw io.Writer, r *convert.Result) error {
	if _, err := io.WriteString(out, r.Policy); err != nil {
		return err
	}
	Remarks(errw, "carried over, and not quite the same", r.Changed)
	Remarks(errw, "not carried over", r.Left)
	for _, n := range r.Notes {
		Println(errw, "note:", n)
	}
	return nil
}

// Remarks prints remarks below a title; none is nothing.
func Remarks(out io.Writer, title string, all []convert.Remark) {
	if len(all) > 0 {
		Printf(out, "%s (%d):\n", title, len(all))
	}
	for _, r := range all {
		Println(out, " ", r)
	}
}
