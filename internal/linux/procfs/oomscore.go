package procfs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
)

// KindScore is the kind of the oom_score_adj of a process. Its address is ID.Text.
const KindScore change.Kind = "oom_score_adj"

// ScoreTarget is the oom_score_adj of the process.
func (id ID) ScoreTarget() change.Target { return change.Target{Kind: KindScore, Addr: id.Text()} }

// Scores reads and writes the oom_score_adj of processes. *Host is one source of them.
type Scores struct {
	Processes interface {
		ReadOOMScoreAdj(ID) (int, error)
		WriteOOMScoreAdj(ID, int) error
	}
}

// Read gives a decimal number. The error matches ErrExited when the process is gone.
func (s Scores) Read(_ context.Context, addr string) (string, error) {
	id, err := ParseID(addr)
	if err != nil {
		return "", fmt.Errorf("read oom_score_adj: %w", err)
	}
	score, err := s.Processes.ReadOOMScoreAdj(id)
	return strconv.Itoa(score), err
}

// Write sets the score. The error matches ErrExited when the process is gone.
func (s Scores) Write(_ context.Context, addr, value string) error {
	id, err := ParseID(addr)
	score, err2 := strconv.Atoi(value)
	if err = errors.Join(err, err2); err != nil {
		return fmt.Errorf("set oom_score_adj: %w", err)
	}
	return s.Processes.WriteOOMScoreAdj(id, score)
}

// Same compares numbers.
func (Scores) Same(_, want, got string) bool {
	return strings.TrimSpace(want) == strings.TrimSpace(got)
}

// Undo gives a process its old score back, unless it has exited.
func (s Scores) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, s, c)
}

// ReadOOMScoreAdj returns the oom_score_adj of a process, -1000 to 1000 (proc(5)).
func (h FS) ReadOOMScoreAdj(id ID) (int, error) {
	dir, err := h.OpenID(id)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	text, err := dir.Read(nil, "oom_score_adj", sysroot.MaxPseudoFile)
	if err != nil {
		return 0, dir.Failed(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, dir.Failed(fmt.Errorf("parse oom_score_adj: %q is not a number", text))
	}
	return score, nil
}

// WriteOOMScoreAdj sets the oom_score_adj of a process. To go below the lowest value that was set
// with CAP_SYS_RESOURCE takes that capability: the error is then EACCES. The error matches ErrExited
// when the process is gone or its pid is another one's; nothing was written to another one then.
func (h FS) WriteOOMScoreAdj(id ID, score int) error {
	dir, err := h.OpenID(id)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.write("oom_score_adj", strconv.Itoa(score)); err != nil {
		return dir.Failed(fmt.Errorf("write %d to oom_score_adj: %w", score, err))
	}
	return dir.Check(id)
}

// OpenID opens the directory of a process after making sure it is the one meant.
func (h FS) OpenID(id ID) (Dir, error) {
	dir, err := h.OpenProc(id.PID)
	if err != nil {
		return Dir{}, err
	}
	if err := dir.Check(id); err != nil {
		dir.Close()
		return Dir{}, err
	}
	return dir, nil
}

// Check says whether the directory is that of the process named, and not of a later one with its pid.
func (d Dir) Check(id ID) error {
	s, err := newProcReader(d.h, false).stat(d)
	if err == nil && s.start != id.Start {
		return fmt.Errorf("read process %d: %w", id.PID, ErrExited)
	}
	return err
}
