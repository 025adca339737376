package rights

import (
	"os"
	"path/filepath"
	"testing"
)

// A path that is mounted read-only is forbidden; one that is not, or is not there, is not.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	if Forbids("ReadWritePaths=-" + dir) {
		t.Errorf("%s is forbidden", dir)
	}
	if Forbids("ReadWritePaths=" + filepath.Join(dir, "none")) {
		t.Error("what is not there is forbidden")
	}
	if Forbids("Nice=5") || Forbids("") {
		t.Error("what nothing tries is forbidden")
	}
}

func TestServiceOf(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/bulkhead.service\n":                                                   "bulkhead.service",
		"4:pids:/x.service\n1:name=systemd:/system.slice/a@1.service\n0::/system.slice\n":       "a@1.service",
		"0::/user.slice/user-0.slice/session-2.scope\n1:name=systemd:/user.slice/session.scope": "",
		"5:pids:/system.slice/bulkhead.service\n0::/\n":                                         "",
		"": "",
	} {
		if got := serviceOf(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil && Service() != "" {
		t.Errorf("without systemd this runs in %q", Service())
	}
}
