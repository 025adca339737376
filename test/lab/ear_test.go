package lab

import (
	"context"
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

// A kernel that says again and again that a CPU is stuck says nothing of use; one that goes on after it is not stuck.
func TestLockupIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var e Ear
		start, after := time.Now(), time.Duration(0)
		go e.Listen(ctx, time.Hour, func() { after = time.Since(start) })
		lockup := func() {
			time.Sleep(28 * time.Second)
			_, _ = e.Write([]byte("[   28.5] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [kworker/1:1:43]\n"))
		}
		for range lockups - 1 {
			lockup()
		}
		_, _ = e.Write([]byte("ok\n"))
		for range lockups - 1 {
			lockup()
		}
		time.Sleep(2 * time.Second)
		if after != 0 {
			t.Errorf("stuck after %v, and something else was written meanwhile", after)
		}
		lockup()
		time.Sleep(2 * time.Second)
		if after == 0 {
			t.Error("a stuck machine is not heard")
		}
	})
}
