package reconcile

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/apply"
)

// Groups whose memory is on its way down take turns, and nothing is waited for between two of these.
func TestFallingGroupsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m memory
		turns, last := map[string]int{}, time.Now().Add(-fallTime)
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			barred, _ := m.stillBarred(1)
			left := fallTime
			for _, group := range []string{"a", "b", "c"} {
				if slices.Contains(barred, group) {
					continue
				}
				if left > 0 && time.Since(last) < fallTime {
					t.Fatalf("group %s is waited for %s after another", group, time.Since(last))
				}
				if left > 0 {
					turns[group]++
				}
				waited := left
				time.Sleep(left)
				left, last = 0, time.Now()
				m.bar(group, 1, fmt.Errorf("step: %w", &apply.UseError{Group: group, Early: true, Waited: waited}))
			}
		}
		for _, group := range []string{"a", "b", "c"} {
			if turns[group] < 6 {
				t.Errorf("turns %v", turns)
				break
			}
		}
		if m.goesOn(time.Now()) {
			t.Error("a look is to go on at once")
		}
		time.Sleep(4 * fallTime)
		if !m.goesOn(time.Now()) {
			t.Error("no look goes on")
		}
	})
}
