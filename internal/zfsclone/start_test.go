package zfsclone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/api"
)

// After a boot the server of a copy is started on what was written in it, also where nothing was mounted; one that runs
// is left alone, and one that is not whole is refused.
func TestStart(t *testing.T) {
	r := newRig(t)
	p := mustMake(t, request(r.pools.dir))
	if _, err := r.Clone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if started, err := r.Start(t.Context(), "dev1"); err != nil || started {
		t.Errorf("one that runs: %v, %v", started, err)
	}
	boot := func() { // nothing runs, nothing is mounted
		r.running = ""
		for _, s := range p.Sets[1:] {
			if err := r.pools.unmount(s.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	boot()
	kept := filepath.Join(p.DataDir, "written")
	if _, err := os.Stat(kept); err == nil {
		t.Fatal("the model left it mounted")
	}
	if started, err := r.Start(t.Context(), "dev1"); err != nil || !started || r.running != p.DataDir {
		t.Errorf("after a boot: %v, %v, server on %q", started, err, r.running)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "by the copy" {
		t.Errorf("%q, %v", text, err)
	}
	r.running = "" // mounted by the host, which is what ZFS does
	if started, err := r.Start(t.Context(), "dev1"); err != nil || !started {
		t.Errorf("mounted already: %v, %v", started, err)
	}

	boot()
	r.pools.gone = true
	if _, err := r.Start(t.Context(), "dev1"); err == nil || !strings.Contains(api.HintOf(err), "zpool import tank") {
		t.Errorf("its pool was not imported: %v, %s", err, api.HintOf(err))
	}
	r.pools.gone = false
	r.pools.sets[p.Sets[1].Name]["mountpoint"] = "/elsewhere"
	if _, err := r.Start(t.Context(), "dev1"); api.CodeOf(err) != api.CodeRefused || r.running != "" {
		t.Errorf("a data set with another place: %v, server on %q", err, r.running)
	}
	r.pools.sets[p.Sets[1].Name]["mountpoint"] = p.Sets[1].Point
	if at, _ := r.killed(1, func() error { return r.Drop(t.Context(), "dev1") }); at == "" {
		t.Fatal("it was not killed")
	}
	if _, err := r.Start(t.Context(), "dev1"); api.CodeOf(err) != api.CodeRefused ||
		!strings.Contains(api.HintOf(err), "zfs drop") {
		t.Errorf("one that is being dropped: %v", err)
	}
	if _, err := r.Start(t.Context(), "none"); err == nil {
		t.Error("one that is not there was started")
	}
}
