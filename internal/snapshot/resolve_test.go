package snapshot

import (
	"testing"

	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/policy"
)

// A policy that comes out the same on fresh facts is the one before, so that what was made of it holds; one that comes
// out another way is not.
func TestResolveKeepsWhatIsTheSame(t *testing.T) {
	h := hosttest.Load(t, "hybrid")
	r := &Reader{Host: h}
	sources := []policy.Source{{Path: "p.yaml", Text: "version: 1\ngroups:\n  a: {match: [{exe: /a}], " +
		"memory: {max: 10%}, cpu: {weight: 100}}\n"}}
	cache := &Cache{}
	var all []*policy.Policy
	for i := range 3 {
		f, err := h.Facts()
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			f.MemTotal /= 2
		}
		p, problems, err := r.resolve(sources, f, cache)
		if err != nil || len(problems) > 0 {
			t.Fatal(err, problems)
		}
		all = append(all, p)
	}
	if all[0] != all[1] || all[1] == all[2] || cache.Resolved != all[2] {
		t.Errorf("%p, %p and, with half of the memory, %p", all[0], all[1], all[2])
	}
}
