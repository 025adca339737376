package sysroot

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// A question that is not answered is not waited for twice; too many of them keep others from being asked, which are
// not called dead; and with the answers all is well again.
func TestAsk(t *testing.T) {
	h := New("/")
	answer := make(chan struct{})
	hung := func() (int, error) { <-answer; return 1, nil }
	well := func() (int, error) { return 2, nil }
	if n, err := WithTimeout(h, "well", well); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	var all sync.WaitGroup
	for i := range mostWaiting {
		all.Go(func() {
			if _, err := WithTimeout(h, fmt.Sprint("dead ", i), hung); !errors.Is(err, ErrNoAnswer) {
				t.Errorf("question %d: %v", i, err)
			}
		})
	}
	all.Wait()
	begin := time.Now()
	if _, err := WithTimeout(h, "dead 0", well); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("asked again: %v", err)
	}
	if _, err := WithTimeout(h, "well", well); !errors.Is(err, errCrowded) || errors.Is(err, ErrNoAnswer) {
		t.Errorf("one too many: %v", err)
	}
	if took := time.Since(begin); took > answerTime/2 {
		t.Errorf("that took %s", took)
	}
	close(answer)
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if n, err := WithTimeout(h, "dead 0", well); n == 2 && err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("with the answers: %v", err)
		}
	}
}
