//go:build root

package bench

import (
	"testing"

	"bulkhead/internal/testhost/release"
)

// Scenarios of the library run with a release in place of the host's server, also where its own program of backups
// runs, and where it is killed.
func TestReleasesRoot(t *testing.T) {
	needRoot(t)
	if !release.Wanted() {
		t.Skip("releases are downloaded: make engines-test")
	}
	for _, tt := range []struct {
		scenario, release, seconds string
		judged                     bool // a smoke run judges some of its bounds
	}{
		{"cpu-quota", "mysql@9.7", "5", true}, {"commits", "mysql@9.7", "5", true}, {"backup", "mysql@9.7", "5", true},
		{"memory-limit", "mysql@9.7", "20", true}, {"commits-postgres", "postgresql@18", "5", true},
		{"memory-cache", "valkey@9", "5", false}, {"huge-pages-mariadb", "mysql@9.7", "5", true},
		{"huge-pages-redis", "valkey@9", "5", true},
	} {
		t.Run(tt.scenario+" on "+tt.release, func(t *testing.T) {
			if judged := smokeRun(t, tt.scenario, tt.seconds, "--engine", tt.release); (judged > 0) != tt.judged {
				t.Errorf("%d bounds hold", judged)
			}
		})
	}
}
