package knob

import (
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

// ownership are the rows of who owns the files of a group. They are no limits, and so not part of the table: their
// files are the names of cgroup.OwnerFiles.
var ownership = buildOwnership()

func buildOwnership() (rows []*Row) {
	for i, file := range slices.Concat(cgroup.OwnerFiles(1), cgroup.OwnerFiles(2)) {
		if slices.ContainsFunc(rows, func(r *Row) bool { return r.File == file }) {
			continue
		}
		form := format.Owners{}
		rows = append(rows, &Row{
			File: file, Keys: []policy.Key{policy.KeyOwner}, Unit: "owner and mode", Descends: true, Up: 90 + i,
			Down: 90 + i,
			form: form, Same: form.Same, Loosens: form.Loosens, needed: func(policy.Settings) bool { return false },
		})
	}
	return rows
}

// Ownership is the row of who owns a file, by the name that a cgroup.Tree has for that; nil for any other name.
func Ownership(file string) *Row {
	for _, r := range ownership {
		if r.File == file {
			return r
		}
	}
	return nil
}
