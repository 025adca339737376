package zfs

import (
	"context"
	"slices"
	"strings"
)

// Property is a value of a dataset or snapshot with its source.
type Property struct {
	Value string `json:"value"`
	// Source is local, default, received, temporary, "inherited from DATASET", or - of what cannot be set.
	Source string `json:"source"`
}

// Dataset is a file system or a snapshot.
type Dataset struct {
	Name       string              `json:"name"`
	Properties map[string]Property `json:"properties"`
}

// Get is the value of a property; "" where it has none or this version knows none.
func (d Dataset) Get(name string) string {
	if v := d.Properties[name].Value; v != "-" {
		return v
	}
	return ""
}

// Number is the value of a property in bytes or units; -1 where it is none.
func (d Dataset) Number(name string) int64 { return number(d.Properties[name].Value) }

// Own are the user properties that begin so: "bulkhead:".
func (d Dataset) Own(prefix string) map[string]string {
	own := map[string]string{}
	for name, p := range d.Properties {
		if strings.HasPrefix(name, prefix) {
			own[name] = p.Value
		}
	}
	return own
}

// Pool is the name of its pool.
func (d Dataset) Pool() string {
	end := strings.IndexAny(d.Name, "/@")
	if end < 0 {
		return d.Name
	}
	return d.Name[:end]
}

// Snapshot is a snapshot of one dataset.
type Snapshot struct {
	Dataset
}

// Used is what only this snapshot holds, in bytes: what destroying it alone would free.
func (s Snapshot) Used() int64 { return s.Number("used") }

// Referenced is how much it reaches, in bytes; most of it is shared with the dataset.
func (s Snapshot) Referenced() int64 { return s.Number("referenced") }

// Created is when it was made, in seconds since 1970.
func (s Snapshot) Created() int64 { return s.Number("creation") }

// Clones are the datasets that were cloned from it, without which it cannot be destroyed.
func (s Snapshot) Clones() []string {
	return strings.FieldsFunc(s.Get("clones"), func(r rune) bool { return r == ',' })
}

// Datasets gives file systems with all of their properties. Without names it is every one.
func (t Tools) Datasets(ctx context.Context, names ...string) ([]Dataset, error) {
	return t.get(ctx, "filesystem", "all", nil, names...)
}

// Below gives a file system and all below it, with some properties, which this version must know or which are a user's.
func (t Tools) Below(ctx context.Context, properties []string, name string) ([]Dataset, error) {
	return t.get(ctx, "filesystem", strings.Join(properties, ","), []string{"-r"}, name)
}

// Snapshots gives those of a dataset and of all datasets below it.
func (t Tools) Snapshots(ctx context.Context, dataset string) ([]Snapshot, error) {
	found, err := t.get(ctx, "snapshot", "all", []string{"-r"}, dataset)
	return snapshots(found), err
}

// SnapshotsWith gives snapshots with some properties, which this version must know or which are a user's: those of the
// datasets themselves, or every one of every pool without datasets.
func (t Tools) SnapshotsWith(ctx context.Context, properties []string, datasets ...string) ([]Snapshot, error) {
	var depth []string
	if len(datasets) > 0 {
		depth = []string{"-d", "1"}
	}
	found, err := t.get(ctx, "snapshot", strings.Join(properties, ","), depth, datasets...)
	return snapshots(found), err
}

func snapshots(found []Dataset) []Snapshot {
	list := []Snapshot{}
	for _, d := range found {
		list = append(list, Snapshot{d})
	}
	return list
}

// get asks for properties: all, since one that this version does not know would be an error, or known ones.
func (t Tools) get(ctx context.Context, kind, properties string, depth []string, names ...string) ([]Dataset, error) {
	args := slices.Concat([]string{"get", "-H", "-p", "-o", "name,property,value,source", "-t", kind}, depth,
		[]string{properties}, names)
	out, err := t.Run(ctx, t.ZFS, args...)
	if err != nil {
		return nil, err
	}
	return datasetsOf(out), nil
}

// datasetsOf reads the output of zfs get -H -p. A user property may hold newlines and tabs: what does not read as a
// line of its own is left out.
func datasetsOf(out string) []Dataset {
	list, at := []Dataset{}, map[string]int{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 4 {
			continue
		}
		i, known := at[f[0]]
		if !known {
			i = len(list)
			at[f[0]], list = i, append(list, Dataset{f[0], map[string]Property{}})
		}
		if _, seen := list[i].Properties[f[1]]; !seen {
			list[i].Properties[f[1]] = Property{f[2], f[3]}
		}
	}
	return list
}
