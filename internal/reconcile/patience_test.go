package reconcile

import (
	"testing"
	"time"
)

// A systemd that is only slow is heard again: after a look that it did not answer the next ones wait longer and longer.
func TestPatienceGrows(t *testing.T) {
	wait, waited := answerTime, []time.Duration{}
	for range 7 {
		wait = patienceAfter(wait, true)
		waited = append(waited, wait)
	}
	if waited[0] != silentTime || waited[5] != answerTime || waited[6] != silentTime {
		t.Errorf("looks wait %v", waited)
	}
	for i := range waited[:5] {
		if waited[i+1] <= waited[i] {
			t.Errorf("looks wait %v", waited)
		}
	}
	if wait := patienceAfter(silentTime, false); wait != answerTime {
		t.Errorf("after an answer a look waits %v", wait)
	}
}
