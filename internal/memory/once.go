package memory

import (
	"slices"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/pagemap"
)

// CountOnce makes what several instances have together count once in their summaries: shared memory that the main
// processes of several map, and a control group that holds several. It counts for the first of them in the list, the
// others name that one. Shared memory is then as large as the kernel says that the objects are, what is swapped out of
// them included. It walks no page tables. Instances whose maps cannot be read (not root, a captured host, ended) stay
// as they are.
func CountOnce(h *host.Host, all []Summary) {
	if len(all) < 2 {
		return // it shares with nobody
	}
	groups, owners, users := map[string]string{}, map[string]int{}, map[string]int{}
	objects := make([][]pagemap.Object, len(all))
	for i := range all {
		s := &all[i]
		if first, has := groups[s.group]; has && s.Group != nil {
			s.Group, s.GroupOf = nil, first
		} else if s.Group != nil {
			groups[s.group] = s.Name
		}
		objects[i], _ = pagemap.Objects(h.Proc, s.PID) // as it is without
		for _, o := range objects[i] {
			if _, has := owners[o.Name]; !has {
				owners[o.Name] = i
			}
			users[o.Name]++
		}
	}
	for i := range all {
		s := &all[i]
		var shared, pool int64
		together := false
		for _, o := range objects[i] {
			together = together || users[o.Name] > 1
			switch owner := owners[o.Name]; {
			case owner != i && !slices.Contains(s.Counted, all[owner].Name):
				s.Counted = append(s.Counted, all[owner].Name)
			case owner == i && o.Pool:
				pool += o.Bytes
			case owner == i:
				shared += o.Bytes
			}
		}
		switch {
		case s.Counted != nil:
			s.Shared, s.Pool = shared, pool
		case together: // the others may have touched more of it
			s.Shared, s.Pool = max(s.Shared, shared), max(s.Pool, pool)
		}
	}
}
