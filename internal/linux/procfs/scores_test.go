package procfs_test

import (
	"os/exec"
	"testing"

	"bulkhead/internal/change/conformance"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// The oom_score_adj of a process of the test's own; everybody may raise it, and give back what it had.
func TestScores(t *testing.T) {
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	h := host.New("/").Proc
	procs, err := h.Processes(procfs.Options{PIDs: []int{sleeper.Process.Pid}})
	if err != nil || len(procs) != 1 {
		t.Fatal(procs, err)
	}
	id := procs[0].ID
	gone := procfs.ID{PID: id.PID, Start: id.Start + 1}
	conformance.Run(t, conformance.Case{
		Actuator: procfs.Scores{Processes: h}, Target: id.ScoreTarget(), Values: []string{"900"}, Refused: "much",
		Gone: gone.ScoreTarget().Addr,
	})
}
