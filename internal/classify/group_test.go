package classify

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/policy"
)

// Databases are groups of the role, an instance's, those that are promised something, and all above them.
func TestDatabases(t *testing.T) {
	got := Databases([]Group{
		{Path: "mysql3306", Instance: "mysql 3306"},
		{Path: "mysql3306/backup", Parent: "mysql3306", Instance: "mysql 3306", Role: policy.RoleHelper},
		{Path: "testing", Role: policy.RoleBatch},
		{Path: "testing/pg", Parent: "testing", Role: policy.RoleDatabase},
		{Path: "staging"},
		{Path: "staging/pg5433", Parent: "staging", Instance: "postgresql 5433"},
		{Path: "promised", SLO: &policy.SLO{}},
		{Path: "reports", Role: policy.RoleBatch},
	})
	want := "mysql3306 promised staging staging/pg5433 testing testing/pg"
	if all := strings.Join(slices.Sorted(maps.Keys(got)), " "); all != want {
		t.Errorf("%s, want %s", all, want)
	}
}
