//go:build root

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// What an agent records beside a MariaDB under a load in steps can be simulated. With RECORD_INTO=FILE the record is
// kept: that is how internal/cli/slosim/testdata/mariadb.record came about.
func TestSLORecordIsSimulated(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes five minutes: LONG=1")
	}
	m := newSteppedMariaDB(t, "heartbeat", 20*time.Second)
	m.groups(never, heavy, "advise")
	agent := m.agent()
	soon(t, "a heartbeat", func() bool { return m.sloOf().Value != nil })
	time.Sleep(15 * time.Second)
	calm := *m.sloOf().Value
	m.groups(time.Duration(3*calm*float64(time.Second)).Round(100*time.Microsecond), heavy, "advise")
	began := time.Now()
	m.run()
	m.beginBatch()
	m.run()
	m.endBatch()
	time.Sleep(15 * time.Second) // collectors read once more
	file := filepath.Join(m.dir, "record")
	m.must("dump", "--from", began.Local().Format(time.DateTime), "--format", "record", "--into", file)
	agent.signal(syscall.SIGTERM)
	agent.ends()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("mysql%d", m.d.port)
	t.Logf("%s, %d bytes\n%s", group, info.Size(), m.must("slo", "simulate", group, "--file", file))
	var v struct {
		Recorded struct{ Windows int }
		Rules    []struct{ Rule string }
	}
	if err := json.Unmarshal([]byte(m.must("slo", "simulate", group, "--file", file, "--json")), &v); err != nil {
		t.Fatal(err)
	}
	if v.Recorded.Windows < 20 || len(v.Rules) < 6 {
		t.Errorf("%d windows were recorded, and %d rules compared", v.Recorded.Windows, len(v.Rules))
	}
	if into := os.Getenv("RECORD_INTO"); into != "" {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(into, text, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}
}
