package systemd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Assignment is a property of the table with its value as text (Row.Encode): what plans and records hold.
type Assignment struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// String gives the assignment as systemctl(1) takes it, the D-Bus name included: "MemoryMax=1073741824".
func (a Assignment) String() string { return a.Name + "=" + a.Text }

// Encode turns assignments into what SetProperties sends.
func Encode(assignments []Assignment) ([]Property, error) {
	var list []Property
	var errs []error
	for _, a := range assignments {
		row, ok := RowOf(a.Name)
		if !ok {
			errs = append(errs, fmt.Errorf("encode %s: no such property in the table", a))
			continue
		}
		p, err := row.Encode(a.Text)
		errs = append(errs, err)
		list = append(list, p)
	}
	return list, errors.Join(errs...)
}

// AccountingSettings are the switches that have systemd make a unit's directories, and count in them: the flags of the
// table, sorted.
func AccountingSettings() []string {
	var names []string
	for _, r := range Table() {
		if r.Form == FormFlag {
			names = append(names, r.Setting)
		}
	}
	slices.Sort(names)
	return names
}

// Accounting gives those that a version knows for a type of unit, switched on.
func Accounting(v Version, unitType string) []Assignment {
	var list []Assignment
	for _, name := range AccountingSettings() {
		if r, ok := RowOf(name); ok && r.Known(v, unitType) {
			list = append(list, Assignment{name, "yes"})
		}
	}
	return list
}

// Assigned encodes properties as a value to write; Assignments decodes.
func Assigned(set []Assignment) string {
	if len(set) == 0 {
		return ""
	}
	text, err := json.Marshal(set)
	if err != nil {
		panic(err) // strings
	}
	return string(text)
}

// Assignments is the inverse of Assigned.
func Assignments(value string) (set []Assignment, err error) {
	if value == "" {
		return nil, nil
	}
	if err = json.Unmarshal([]byte(value), &set); err != nil {
		err = fmt.Errorf("decode properties %q: %w", value, err)
	}
	return set, err
}
