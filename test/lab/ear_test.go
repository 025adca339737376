package lab

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSilenceIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var e Ear
		start, after := time.Now(), time.Duration(0)
		go e.Listen(ctx, 12*time.Minute, func() { after = time.Since(start) })
		time.Sleep(10 * time.Minute)
		_, _ = e.Write([]byte("."))
		time.Sleep(10 * time.Minute)
		if after != 0 {
			t.Errorf("silent after %v, and something was written after 10m", after)
		}
		time.Sleep(10 * time.Minute)
		if after != 22*time.Minute {
			t.Errorf("silent after %v, not after 22m", after)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var e Ear
		go e.Listen(ctx, time.Minute, func() { t.Error("called after the end of its context") })
		cancel()
		synctest.Wait()
		time.Sleep(time.Hour)
	})
}

// A kernel that says of one CPU for minutes that it is stuck is stuck, whatever else its console says; the console
// comes in pieces, as emulated serial lines give it.
func TestLockupIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var e Ear
		start, after := time.Now(), time.Duration(0)
		go e.Listen(ctx, time.Hour, func() { after = time.Since(start) })
		say := func(line string) {
			time.Sleep(28 * time.Second)
			for piece := range slices.Chunk([]byte(line+"\r\n"), 7) {
				_, _ = e.Write(piece)
			}
		}
		for _, line := range []string{
			"[   28.5] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [kworker/1:1:43]",
			"[   56.5] watchdog: BUG: soft lockup - CPU#1 stuck for 52s! [kworker/1:1:43]",
			"ok",
			strings.Repeat(".", 2*longestLine),
			"[  956.5] watchdog: BUG: soft lockup - CPU#2 stuck for 139s! [swapper/3:0]",
		} {
			say(line)
		}
		time.Sleep(2 * time.Second)
		if after != 0 {
			t.Errorf("stuck after %v, and no CPU for %v", after, lockup)
		}
		say("[  984.5] watchdog: BUG: soft lockup - CPU#2 stuck for 165s! [swapper/3:0]")
		time.Sleep(2 * time.Second)
		if after == 0 {
			t.Error("a stuck machine is not heard")
		}
	})
}
