package knob

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
)

// Files is the actuator of knob files, cgroup.KindFile. It reads a value in the form in which it is written, and
// compares values by the rows of the table; a file that no row names is plain text.
type Files struct {
	Tree interface {
		Read(cgroup.File) (string, error)
		Write(cgroup.File, string) error
	}
}

// Read reads a file, or of a file with a line for each device the line of one.
func (k Files) Read(_ context.Context, addr string) (string, error) {
	f, r, err := fileOf(addr)
	if err != nil {
		return "", err
	}
	got, err := k.Tree.Read(f)
	if err == nil && r != nil {
		got = r.Parse(got)
	}
	return got, err
}

// Write writes a file.
func (k Files) Write(_ context.Context, addr, value string) error {
	f, _, err := fileOf(addr)
	if err != nil {
		return err
	}
	return k.Tree.Write(f, value)
}

// Same compares by the row of the file.
func (k Files) Same(addr, want, got string) bool {
	_, r, _ := fileOf(addr)
	if r == nil || r.Same == nil {
		return want == got
	}
	return r.Same(want, got)
}

// Undo gives a file its old value back. A cpuset list of cgroup v2 that was empty stood for all that the directory
// above has. The kernel does not take the empty list back while a process is inside (ENOSPC, validate_change in
// kernel/cgroup/cpuset.c): then it gets by number what it stood for.
func (k Files) Undo(ctx context.Context, c change.Change) (bool, error) {
	if _, r, _ := fileOf(c.Addr); r != nil && r.Version == 2 && r.Controller == "cpuset" && c.Old != c.Undo {
		empty := c
		empty.Undo = c.Old
		undone, err := change.Restore(ctx, k, empty)
		if !errors.Is(err, cgroup.ErrInvalid) {
			return undone, err
		}
	}
	return change.Restore(ctx, k, c)
}

// fileOf is the file of an address, with its row; nil when the table has none.
func fileOf(addr string) (cgroup.File, *Row, error) {
	f, ok := cgroup.ParseFile(addr)
	if !ok {
		return f, nil, fmt.Errorf("use file %q: not the address of a file of a hierarchy", addr)
	}
	return f, RowOf(f), nil
}

// byName finds the rows of the table by version and file name. Rows with a file per page size are under what comes
// before the size.
var byName = sync.OnceValue(func() map[int]map[string][]*Row {
	rows := map[int]map[string][]*Row{1: {}, 2: {}}
	for _, r := range Table() {
		prefix, _, _ := strings.Cut(r.File, "%s")
		rows[r.Version][prefix] = append(rows[r.Version][prefix], r)
	}
	return rows
})

// RowOf finds the row of a file, nil when the table has none.
func RowOf(f cgroup.File) *Row {
	version := 1
	if f.Hierarchy == procfs.UnifiedID {
		version = 2
	}
	rows := byName()[version]
	for _, r := range rows[f.Name] {
		if !r.PerSize {
			return r
		}
	}
	controller, rest, _ := strings.Cut(f.Name, ".")
	for _, r := range rows[controller+"."] {
		prefix, suffix, _ := strings.Cut(r.File, "%s")
		size, ok := strings.CutSuffix(strings.TrimPrefix(f.Name, prefix), suffix)
		if ok && rest != "" && !strings.Contains(size, ".") {
			return r
		}
	}
	return DiskRow(f.Name)
}
