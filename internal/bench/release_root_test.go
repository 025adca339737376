//go:build root

package bench

import (
	"testing"

	"bulkhead/internal/testhost/release"
)

// Scenarios of the library run with a release in place of the host's server, also where its own program of backups
// runs. memory-limit does not: half of its pool is less than MySQL takes to start.
func TestReleasesRoot(t *testing.T) {
	needRoot(t)
	if !release.Wanted() {
		t.Skip("releases are downloaded: make engines-test")
	}
	for _, tt := range []struct{ scenario, release string }{
		{"cpu-quota", "mysql@9.7"}, {"commits", "mysql@9.7"}, {"backup", "mysql@9.7"},
		{"commits-postgres", "postgresql@18"}, {"memory-cache", "valkey@9"},
	} {
		t.Run(tt.scenario+" on "+tt.release, func(t *testing.T) {
			if smokeRun(t, tt.scenario, "5", "--engine", tt.release) == 0 {
				t.Error("no bound was judged")
			}
		})
	}
}
