package host

import (
	"fmt"
	"strconv"
	"strings"
)

// ReadOOMScoreAdj returns the oom_score_adj of a process, -1000 to 1000 (proc(5)).
func (h ProcFS) ReadOOMScoreAdj(id ProcID) (int, error) {
	dir, err := h.openID(id)
	if err != nil {
		return 0, err
	}
	defer dir.close()
	text, err := dir.read(nil, "oom_score_adj", maxPseudoFile)
	if err != nil {
		return 0, dir.failed(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, dir.failed(fmt.Errorf("parse oom_score_adj: %q is not a number", text))
	}
	return score, nil
}

// WriteOOMScoreAdj sets the oom_score_adj of a process. To go below the lowest value that was set
// with CAP_SYS_RESOURCE takes that capability: the error is then EACCES. The error matches ErrExited
// when the process is gone or its pid is another one's; nothing was written to another one then.
func (h ProcFS) WriteOOMScoreAdj(id ProcID, score int) error {
	dir, err := h.openID(id)
	if err != nil {
		return err
	}
	defer dir.close()
	if err := dir.write("oom_score_adj", strconv.Itoa(score)); err != nil {
		return dir.failed(fmt.Errorf("write %d to oom_score_adj: %w", score, err))
	}
	return dir.check(id)
}

// openID opens the directory of a process after making sure it is the one meant.
func (h ProcFS) openID(id ProcID) (procDir, error) {
	dir, err := h.openProc(id.PID)
	if err != nil {
		return procDir{}, err
	}
	if err := dir.check(id); err != nil {
		dir.close()
		return procDir{}, err
	}
	return dir, nil
}

func (d procDir) check(id ProcID) error {
	s, err := newProcReader(d.h, false).stat(d)
	if err == nil && s.start != id.Start {
		return fmt.Errorf("read process %d: %w", id.PID, ErrExited)
	}
	return err
}
