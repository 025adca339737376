package snapshot

import (
	"reflect"
	"slices"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/resolve"
)

// resolve parses a policy and fits it to the host.
func (r *Reader) resolve(sources []policy.Source, f *host.Facts, c *Cache) (*policy.Policy, policy.Problems, error) {
	same := c != nil && c.Parsed != nil && slices.Equal(c.sources, sources)
	if same && c.Facts == f {
		return c.Resolved, slices.Clone(c.problems), nil
	}
	var parsed *policy.Policy
	if same {
		parsed = c.Parsed
	} else {
		var err error
		if parsed, err = parse.Policy(sources); err != nil {
			if all := resolve.ProblemsOn(sources, f, r.Resolver(f)); len(all) > 0 {
				err = all
			}
			return nil, nil, err
		}
	}
	resolved, problems := resolve.Policy(parsed, f, r.Resolver(f))
	if c != nil {
		if same && reflect.DeepEqual(resolved, c.Resolved) {
			resolved = c.Resolved // what was compiled of it holds
		}
		c.sources, c.Parsed, c.Facts, c.Resolved, c.problems = sources, parsed, f, resolved, slices.Clone(problems)
	}
	return resolved, problems, nil
}

// Resolver answers what a policy asks about paths and interfaces of this host, beside facts.
func (r *Reader) Resolver(f *host.Facts) resolve.Resolver {
	answers := resolve.Resolver{
		EvalSymlinks: r.Host.Root.EvalSymlinks,
		Names:        r.Host.Root.ReadDir,
		Storage:      func() (*blockdev.Storage, error) { return r.storage(f) },
	}
	if r.Local {
		answers.Interface = (&nics{r: r}).find
	}
	return answers
}

// resolverOf is Resolver for what is laid over a policy.
func (r *Reader) resolverOf(s *Snapshot) resolve.Resolver {
	answers := r.Resolver(s.Facts)
	answers.Host = &s.Policy.Host
	return answers
}

// storage is what files lie on, for io limits that name a target. It is as old as the facts: an agent reads both anew
// together.
func (r *Reader) storage(f *host.Facts) (*blockdev.Storage, error) {
	r.disks.Lock()
	defer r.disks.Unlock()
	if r.disks.facts == f && r.disks.storage != nil {
		return r.disks.storage, nil
	}
	storage, err := r.Host.Block.Storage()
	if err != nil {
		return nil, err
	}
	r.disks.facts, r.disks.storage = f, storage
	return storage, nil
}

// placedBelow is a policy whose groups lie below a root group, where an earlier version applied one that names none.
func placedBelow(resolved *policy.Policy, root string) *policy.Policy {
	if root == "" || resolved.Host.Root != "" {
		return resolved
	}
	below := *resolved
	below.Host.Root = root
	return &below
}
