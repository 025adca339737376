package copies

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"bulkhead/internal/api"
	"bulkhead/internal/atomicfile"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
	"bulkhead/internal/zfsclone"
)

// groupThere sees that a group is in force.
func (w *work) groupThere(ctx context.Context, group string) error {
	v, _, err := w.Membership(ctx)
	if err != nil {
		return err
	}
	if !v.HasGroup(group) {
		err := transaction.NoGroup(v, group)
		return api.Errorf(api.CodeOf(err), "--class makes the group from a class of the policy, --group takes one "+
			"that is there. A copy is started in a group, so that it cannot hurt its origin", "%w", err)
	}
	return nil
}

// groupFile is the part of the policy that has the group of a copy, and its text.
func (w *work) groupFile(p *zfsclone.Plan) (name, text string) {
	return filepath.Join(filepath.Dir(*w.Policy), "policy.d", "zfs-"+p.Name+".yaml"), fmt.Sprintf("# Of the copy %s: "+
		"`bulkhead zfs drop %s` removes this file.\ngroups:\n  %q: {class: %q}\n", p.Name, p.Name, p.Group, p.Class)
}

// setGroup has a copy's group in the policy, or not, and puts that in force. Nothing else of the policy may change by
// that: an edit that nobody applied yet is not this verb's.
func (w *work) setGroup(ctx context.Context, p *zfsclone.Plan, there bool, reason string) error {
	name, text := w.groupFile(p)
	now, err := os.ReadFile(name)
	has := err == nil
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case has && string(now) != text:
		return api.Errorf(api.CodeRefused, "move it away, and apply the policy", "%s was changed by somebody else",
			name)
	}
	_, docs, err := w.Membership(ctx)
	if err != nil {
		return err
	}
	released := transaction.RefuseReleased(docs, p.Group)
	if released != nil && there {
		return released
	}
	applied := false
	if released == nil { // else its group is gone, and so is perhaps everything
		if applied, err = w.pending(docs, name); err != nil {
			return err
		}
	}
	if there {
		err = w.addGroup(name, text, has)
	} else if has {
		err = errors.Join(os.Remove(name), atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(name)))
	}
	if err != nil || applied == there {
		return err
	}
	if err = w.Apply(ctx, reason); err != nil && there {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// addGroup writes the part of the policy, and sees that the policy has it and is sound.
func (w *work) addGroup(name, text string, has bool) error {
	if !has {
		if _, err := atomicfile.Write(atomicfile.OS{}, name, []byte(text), 0o644); err != nil {
			return api.Errorf(api.CodeFailed, "make the directory, with `include: [policy.d/*.yaml]` in the policy; "+
				"or add the group to the policy yourself, apply it, and name it with --group", "write %s: %w", name,
				err)
		}
	}
	sources, err := yamlform.Read(*w.Policy)
	if err == nil && !slices.ContainsFunc(sources, func(s policy.Source) bool { return sameFile(s.Path, name) }) {
		err = api.Errorf(api.CodeRefused, "add `include: [policy.d/*.yaml]` to it and apply it; or add the group "+
			"yourself, and name it with --group", "the policy %s does not include %s", *w.Policy, name)
	}
	if err == nil {
		_, err = parse.Policy(sources)
	}
	if err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	two, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(one, two)
}

// pending says whether the policy in force has a part, and refuses where the files differ from it in anything else.
func (w *work) pending(docs *state.Documents, part string) (applied bool, err error) {
	if docs.Applied == nil {
		return false, transaction.NotApplied()
	}
	sources, err := yamlform.Read(*w.Policy)
	if err != nil {
		return false, err
	}
	texts := func(list []policy.Source) (texts []string, has bool) {
		for _, s := range list {
			if filepath.Base(s.Path) == filepath.Base(part) {
				has = true
				continue
			}
			texts = append(texts, s.Text)
		}
		return texts, has
	}
	in, applied := texts(docs.Applied.Sources)
	if files, _ := texts(sources); !slices.Equal(in, files) {
		return applied, api.Errorf(api.CodeRefused, "`bulkhead plan` shows what, `bulkhead apply` puts it in force; "+
			"then call the same again", "the policy %s has changes that are not in force", *w.Policy)
	}
	return applied, nil
}
