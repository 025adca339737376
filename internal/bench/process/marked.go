package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// markName is the variable that holds the work directory of the run in the environment of everything that it starts,
// and of what those start.
const markName = "BULKHEAD_BENCH"

// endGrace is for what has got its signal to end by itself: a server that is killed outright leaves shared memory
// behind.
const endGrace = 3 * time.Second

// EndMarked waits for what still runs of a run, which it knows by the mark in its environment, and kills what does not
// end: grandchildren of a server that was being installed, or hogs whose parent was killed just now. A process that
// took its environment away, as PostgreSQL's do for their titles, ends with its parent.
func EndMarked(ctx context.Context, dir string) error {
	h := host.New("/")
	begun := time.Now()
	for {
		all, err := h.Proc.Processes(procfs.Options{Env: true})
		if err != nil && !errors.Is(err, procfs.ErrHidden) {
			return fmt.Errorf("look for processes of the run: %w", err)
		}
		var left []string
		for _, p := range all {
			if !slices.Contains(p.Env, markName+"="+dir) || !h.Proc.Alive(p.ID) {
				continue
			}
			left = append(left, fmt.Sprintf("%d (%s)", p.PID, p.Comm))
			if time.Since(begun) < endGrace {
				continue
			}
			// ESRCH: it ended just now.
			if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end process %d: %w", p.PID, err)
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end processes of the run: %s are still there: %w", strings.Join(left, ", "),
				context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
