package control

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/inspect"
)

// A limit that a service and the rest of its group hold each for itself is not enforced, though each file holds what
// was asked. A reserve that nothing keeps is said, and no fault.
func TestLimitsOfAServiceApartAreNotEnforced(t *testing.T) {
	m := newMachine(t, "")
	m.service("db.service", "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	m.apply(`host: {reserve: {memory: 256MiB}}
groups:
  app:
    role: database
    match: [{exe: mysqld}]
    memory: {max: 1GiB}
    tasks: 500
    groups:
      backup: {role: helper, match: [{exe: backup}], tasks: 50}
  free: {match: [{exe: nothing}], tasks: 9}
`)
	all, err := inspect.Verify(t.Context(), m.Reconciler.Controller, nil)
	m.must(err)
	var faults []string
	for _, r := range all {
		if r.Fault() {
			faults = append(faults, r.Group+" "+string(r.Key)+": "+r.Reason)
		}
	}
	want := []string{"app memory.max: its limits hold db.service and the rest",
		"app tasks: its limits hold db.service and the rest"}
	if !slices.EqualFunc(faults, want, strings.HasPrefix) {
		t.Errorf("not enforced are %q, want %q", faults, want)
	}
}
