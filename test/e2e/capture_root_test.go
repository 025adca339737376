//go:build root

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/blockdev"
)

// layersOf is every layer of storage that leads from a mount to a disk, a line each.
func layersOf(s *blockdev.Storage) string {
	var b strings.Builder
	seen := map[*blockdev.Layer]bool{}
	var walk func(l *blockdev.Layer)
	walk = func(l *blockdev.Layer) {
		if seen[l] {
			return
		}
		seen[l] = true
		fmt.Fprintf(&b, "%s %s %q %s %q %q", l.ID, l.Kind, l.Name, l.Type, l.Detail, l.Trouble)
		for _, below := range l.Below {
			fmt.Fprintf(&b, " -> %s[%s]", below.ID, below.Role)
		}
		b.WriteString("\n")
		for _, below := range l.Below {
			walk(below.Layer)
		}
	}
	for _, m := range s.Mounts() {
		walk(s.On(m))
	}
	for _, l := range s.Unused() {
		walk(l)
	}
	return b.String()
}

// What is captured of this machine's storage tells the same as the machine itself: in the lab of every stack that the
// tests build there.
func TestCapturedStorage(t *testing.T) {
	check := func(t *testing.T) {
		time.Sleep(500 * time.Millisecond) // an array that was just written is "active" for a moment
		h := host.New("/")
		live, err := h.Block.Storage()
		if err != nil {
			t.Fatal(err)
		}
		var archive bytes.Buffer
		if err := hosttest.CaptureStorage(h, &archive); err != nil {
			t.Fatal(err)
		}
		captured, err := hosttest.FromArchive(t, archive.String()).Block.Storage()
		if err != nil {
			t.Fatal(err)
		}
		states := strings.NewReplacer("write-pending", "clean", "active-idle", "clean", ", active", ", clean")
		if got, want := states.Replace(layersOf(captured)), states.Replace(layersOf(live)); got != want {
			t.Errorf("captured:\n%s\nlive:\n%s", got, want)
		}
	}
	t.Run("as it is", check)
	if os.Getenv("BULKHEAD_LAB") != "1" {
		return
	}
	for _, st := range stacks {
		t.Run(st.name, func(t *testing.T) {
			st.make(t)
			check(t)
		})
	}
}
