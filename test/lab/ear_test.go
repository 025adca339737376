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
