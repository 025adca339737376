//go:build root

package bench

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/proof"
)

// The scenario numa on a machine with two nodes, such as the lab's: what each database holds is on the node that the
// policy gives it. Throughput is another matter: in emulation no memory is nearer than other memory.
func TestNUMARoot(t *testing.T) {
	needRoot(t)
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	if len(facts.Nodes) < 2 {
		t.Skipf("this machine has %d NUMA node; the lab's have two (make lab PKG=./internal/bench RUN=TestNUMA)",
			len(facts.Nodes))
	}
	if judged := smokeRun(t, "numa", "10"); judged != 4 {
		t.Errorf("%d of 4 databases have their memory on their node", judged)
	}
}

// The scenario numa-swap there: the instance that may have half of its memory swaps, and no other; memory of its node
// and of others is free meanwhile.
func TestNUMASwapRoot(t *testing.T) {
	needRoot(t)
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	if len(facts.Nodes) < 2 {
		t.Skipf("this machine has %d NUMA node; the lab has one with four (make lab MODE=memory PKG=./internal/bench "+
			"RUN=TestNUMASwap)", len(facts.Nodes))
	}
	if judged := smokeRun(t, "numa-swap", "20"); judged != 6 {
		t.Errorf("%d of 6 bounds hold", judged)
	}
}

// smokeRun is how many bounds of a scenario were judged in a smoke run with so many seconds an arm. They must hold, and
// it must leave nothing.
func smokeRun(t *testing.T, name, seconds string, more ...string) (judged int) {
	t.Helper()
	dir := workArea(t)
	out := filepath.Join(t.TempDir(), "report")
	cmd := exec.Command(buildProgram(t), append([]string{"bench", name, "--smoke", "--seconds", seconds, "--dir",
		dir, "--out", out}, more...)...)
	var said bytes.Buffer
	cmd.Stdout = &said
	r := startProgram(t, dir, cmd)
	if err := r.end(t); err != nil {
		t.Fatalf("%v\n%s\n%s", err, r.all, &said)
	}
	text, err := os.ReadFile(filepath.Join(out, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var result proof.Result
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir)
	t.Logf("%s on %s", name, result.Machine)
	for _, f := range result.Shape {
		t.Logf("%s: %.4g%s (document: %s), %v", f.What, float64(f.Measured.Median), f.Unit,
			cmp.Or(f.Reports, "-"), f.Verdict)
		if f.Verdict == proof.Holds {
			judged++
		}
	}
	return judged
}
