package usage

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
)

// What changes nothing ends with the verb, however long it takes.
func TestInterruptible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan struct{})
		got := make(chan error, 1)
		go func() {
			got <- Interruptible(ctx, func() error {
				<-end
				return nil
			})
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-got:
			if err == nil || !strings.Contains(err.Error(), "nothing was changed") {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Error("it waits for what takes long")
		}
		close(end)
	})
	if err := Interruptible(t.Context(), func() error { return nil }); err != nil {
		t.Error(err)
	}
}
