//go:build root

package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An upgrade of the rpm brings the drop-in of the unit up to date, and its removal takes it away.
func TestRPMKeepsTheDropIn(t *testing.T) {
	r := newRPMRoot(t)
	first, second := find(t, pack(t, version), "rpm"), upgrade(t)
	r.rpm("-i", "--nodeps", first)
	if err := os.MkdirAll(r.at("/etc/systemd"), 0o755); err != nil {
		t.Fatal(err)
	}
	const dropIn = "/etc/systemd/system/bulkhead.service.d/policy.conf"
	r.has("installed", dropIn, false)
	r.write("/etc/bulkhead/policy.yaml",
		"version: 1\ngroups: {a: {match: [{exe: a}], owner: {user: games, may: [set]}}}\n")
	r.write("/var/lib/bulkhead/lock", "") // as it is when something was applied here
	r.rpm("-U", "--nodeps", second)
	if text, err := os.ReadFile(r.at(dropIn)); err != nil || !strings.Contains(string(text), "CAP_CHOWN") {
		t.Errorf("after the upgrade the unit's drop-in is %q, %v", text, err)
	}
	r.rpm("-e", "bulkhead")
	r.has("removed", filepath.Dir(dropIn), false)
}
