package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/rlimit"
)

const infinity = "infinity"

// Limits is the actuator of KindLimit. Processes that the main one has started already keep theirs.
type Limits struct{ Host }

// main is the main process of the service of an address, and the limit.
func (l Limits) main(ctx context.Context, addr string) (pid int, of *limit, err error) {
	unit, k, err := split(addr)
	if err != nil {
		return 0, nil, err
	}
	if !l.Root.Exists("/run/systemd/system") {
		return 0, nil, errNone
	}
	pid, err = l.Systemd.MainPID(ctx, unit)
	if err == nil && pid <= 0 {
		err = change.Gone(unit + " does not run")
	}
	return pid, k.limit, err
}

// Read gives the limit of the main process.
func (l Limits) Read(ctx context.Context, addr string) (string, error) {
	pid, of, err := l.main(ctx, addr)
	if err != nil {
		return "", err
	}
	text, err := l.Root.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		err = change.Gone("the process has ended")
	}
	if err != nil {
		return "", fmt.Errorf("read the limits of process %d: %w", pid, err)
	}
	now, there := rlimit.Parse(string(text))[of.line]
	if !there {
		return "", fmt.Errorf("/proc/%d/limits has no line %q", pid, of.line)
	}
	return both(now.Soft, now.Hard), nil
}

// Write gives the main process the limit.
func (l Limits) Write(ctx context.Context, addr, value string) error {
	soft, hard, err := pair(value)
	if err != nil {
		return err
	}
	pid, of, err := l.main(ctx, addr)
	switch {
	case err != nil:
		return err
	case l.Dir == "":
		return change.ErrCaptured
	}
	set := l.SetLimit
	if set == nil {
		if !l.Root.Live() {
			return change.ErrCaptured
		}
		set = Prlimit
	}
	switch err := set(pid, of.resource, soft, hard); {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("set a limit of process %d: %w", pid, change.Gone("the process has ended"))
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("set %s of process %d: %w; to raise a limit takes CAP_SYS_RESOURCE, and no LimitNOFILE may "+
			"be more than fs.nr_open", value, pid, err)
	case err != nil:
		return fmt.Errorf("set %s of process %d: %w", value, pid, err)
	}
	return nil
}

// Prlimit gives a process a limit by prlimit(2).
func Prlimit(pid, resource int, soft, hard uint64) error {
	return unix.Prlimit(pid, resource, &unix.Rlimit{Cur: soft, Max: hard}, nil)
}

// Same compares numbers: "64M" is 67108864.
func (Limits) Same(_, want, got string) bool {
	s1, h1, err1 := pair(want)
	s2, h2, err2 := pair(got)
	return err1 == nil && err2 == nil && s1 == s2 && h1 == h2
}

// Undo gives the process that is the main one now the limit that was there before.
func (l Limits) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, l, c)
}

// AfterBoot is the change: the drop-in that came with it may have set the limit again.
func (Limits) AfterBoot(c change.Change) change.Change { return c }

// pair are the soft and the hard limit of a value.
func pair(value string) (soft, hard uint64, err error) {
	first, second, two := strings.Cut(value, ":")
	if soft, err = number(first); err != nil || !two {
		return soft, soft, err
	}
	hard, err = number(second)
	return soft, hard, err
}

// both is the inverse.
func both(soft, hard uint64) string {
	if soft == hard {
		return text(soft)
	}
	return text(soft) + ":" + text(hard)
}

func text(n uint64) string {
	if n == math.MaxUint64 {
		return infinity
	}
	return strconv.FormatUint(n, 10)
}

// number reads a limit of systemd's.
func number(text string) (uint64, error) {
	if text == infinity {
		return math.MaxUint64, nil
	}
	unit := uint64(1)
	if at := strings.IndexAny("KMGT", text[max(len(text)-1, 0):]); text != "" && at >= 0 {
		unit, text = 1<<(10*(at+1)), text[:len(text)-1]
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > math.MaxUint64/unit {
		return 0, fmt.Errorf("%q is no limit", text)
	}
	return n * unit, nil
}
