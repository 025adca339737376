package rootfs

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/scenario"
)

// Every release that a scenario may name has a root directory of its own, with programs below it.
func TestReleases(t *testing.T) {
	for _, name := range scenario.Releases() {
		r, known := releases[name]
		if !known || len(r.packages) == 0 || len(r.programs) == 0 {
			t.Fatalf("%s is made of %+v", name, r)
		}
		if dir := Dir(name); filepath.Dir(dir) != Cache || strings.Contains(dir, "@") {
			t.Errorf("%s is kept in %q", name, dir)
		}
		for key, path := range r.programs {
			if !filepath.IsLocal(path) {
				t.Errorf("%s: %s is at %q", name, key, path)
			}
		}
	}
	if len(releases) != len(scenario.Releases()) {
		t.Errorf("scenarios know %v", scenario.Releases())
	}
	if _, err := Programs(t.Context(), "mysql@0"); err == nil {
		t.Error("there is a release that is none")
	}
	// What is not made needs a program that makes it.
	if need := Maker("mysql@0"); !slices.Equal(process.Packages(need), []string{"mmdebstrap"}) {
		t.Errorf("it needs %v", need)
	}
}
