//go:build root

package e2e

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
)

// A backup that reads a data directory and packs it, and that the loop lowers to its floor, which nobody has named,
// takes at most twice its time; and status says when it ends.
func TestSLOSqueezedBackupEnds(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes some minutes: LONG=1")
	}
	s := newSite(t)
	d := mariadb(t)
	d.start()
	data := filepath.Join(d.dir, "data")
	file, err := os.Create(filepath.Join(data, "much"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(file, rand.NewChaCha8([32]byte{}), 2<<30); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
	top := fmt.Sprintf("mysql%d", d.port)
	s.write(fmt.Sprintf("groups:\n  %q: {role: database, each: {engine: mysql, port: %d}, cpu: {weight: 100}, "+
		"slo: {waits: 20%%}, groups: {backup: {role: helper, match: [{exe: no-such-program}], cpu: {weight: 50}}}}\n"+
		"slo: {mode: act, squeeze: [\"mysql{port}/backup\"]}\n", "mysql{port}", d.port))
	s.must("apply")
	backup := top + "/backup"
	run := func() time.Duration {
		t.Helper()
		begun := time.Now()
		s.must("run", backup, "--", "sh", "-c", "find "+data+" -type f | while read -r f; do "+
			"dd if=\"$f\" bs=1M iflag=direct 2>/dev/null | gzip >/dev/null; done")
		return time.Since(begun)
	}
	var load []*background // of the database, that its processes wait for CPUs
	for range 2 {
		load = append(load, s.start("run", top, "--", "sh", "-c", spins))
	}
	soon(t, "the load", func() bool { return len(s.group(top).Members) >= len(load) })
	alone := run()
	agent := s.agent()
	time.Sleep(30 * time.Second) // collectors have seen that there is no backup
	type told struct {
		at, ends time.Time
		held     api.SLOHeld
	}
	var all []told
	done, watched := make(chan bool), make(chan bool)
	go func() {
		defer close(watched)
		for {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Second):
				for _, h := range s.sloOf().Held {
					one := told{at: time.Now(), held: h}
					if h.Ends != nil {
						one.ends = *h.Ends
					}
					all = append(all, one)
				}
			}
		}
	}()
	squeezed := run()
	ended := time.Now()
	last := s.sloOf()
	text := last.Text()
	close(done)
	<-watched
	agent.signal(syscall.SIGTERM)
	agent.ends()
	again := run()
	lowest, says, off := "", "", 0.0
	for _, one := range all {
		if lowest == "" || one.held.Value < lowest {
			lowest = one.held.Value
		}
		if says = one.held.Unknown; one.ends.IsZero() || ended.Sub(one.at) < squeezed/4 {
			continue
		}
		off = one.ends.Sub(ended).Seconds() / ended.Sub(one.at).Seconds()
		t.Logf("%s before its end, lowered to %s, %.0f %% of %s were read, and its end was told %s too late",
			ended.Sub(one.at).Round(time.Second), one.held.Value, 100**one.held.Read, one.held.Of,
			one.ends.Sub(ended).Round(time.Second))
	}
	t.Logf("the backup takes %s and %s beside the load, and %s while it is lowered, to %s cores at least; %s",
		alone, again, squeezed, lowest, text)
	switch {
	case lowest == "":
		t.Errorf("it was not lowered: %s", text)
	case squeezed > 2*max(alone, again):
		t.Errorf("lowered it took %.2f of its time", squeezed.Seconds()/max(alone, again).Seconds())
	case off == 0 && len(all) < 40: // looks 2 s and more apart
		t.Logf("it was lowered for too short a time for its end to be told: this machine is too busy: %s", says)
	case off == 0:
		t.Errorf("its end was never told: %s", says)
	case math.Abs(off) > 0.5:
		t.Errorf("its end was told %.0f %% of what was left too late", 100*off)
	}
	for _, l := range load {
		l.signal(syscall.SIGKILL)
	}
}
