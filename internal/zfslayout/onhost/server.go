package onhost

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/relaunch"
	"bulkhead/internal/systemd"
	"bulkhead/internal/zfslayout"
)

// Units starts and stops units of systemd. systemd.Manager does.
type Units interface {
	Unit(ctx context.Context, name string) (*systemd.Unit, error)
	Start(ctx context.Context, name string) error
	Stop(ctx context.Context, name string) error
	ResetFailed(ctx context.Context, name string) error
}

// HostServer is the server of a plan on a host.
type HostServer struct {
	Host  *host.Host
	Units Units // nil where the plan has no unit
	Plan  *zfslayout.Plan
	Wait  time.Duration // for a stop, and for an answer
}

// find gives the server's instance; nil where it does not run.
func (s HostServer) find() (*engine.Instance, error) {
	found, err := recognise.OfHost(s.Host)
	if err != nil {
		return nil, fmt.Errorf("find the databases of this host: %w", err)
	}
	for _, i := range found {
		if i.Engine == s.Plan.Engine && in(s.Plan, i.DataDir) && !i.Container {
			return &i, nil
		}
	}
	return nil, nil //nolint:nilnil // it does not run
}

// in says whether a directory that a server names as that of its data is the one of the plan. Its name and port do not
// count: somebody may have started it on the directory that is kept.
func in(p *zfslayout.Plan, dir string) bool {
	if slices.Contains([]string{p.DataDir, p.Told}, path.Clean(dir)) {
		return true
	}
	real, err := filepath.EvalSymlinks(dir)
	return err == nil && real == p.DataDir
}

// Running says whether a process of the server is there, or its unit is up or on its way.
func (s HostServer) Running(ctx context.Context) (bool, error) {
	inst, err := s.find()
	if err != nil || inst != nil || s.Plan.Start.Unit == "" {
		return inst != nil, err
	}
	u, err := s.Units.Unit(ctx, s.Plan.Start.Unit)
	return err == nil && u.Active(), err
}

// Stop stops it in order, and waits until it is gone. Nothing is ever killed.
func (s HostServer) Stop(ctx context.Context) error {
	inst, err := s.find()
	if err != nil {
		return err
	}
	if s.Plan.Start.Unit != "" {
		if err := s.Units.Stop(ctx, s.Plan.Start.Unit); err != nil {
			return err
		}
	} else if inst != nil {
		signal := syscall.SIGTERM
		if s.Plan.Engine == engine.PostgreSQL {
			signal = syscall.SIGINT // a fast shutdown: SIGTERM waits for clients
		}
		if err := relaunch.Signal(s.Host.Proc, inst.Main, signal); err != nil {
			return err
		}
	}
	for end := time.Now().Add(s.Wait); ; {
		running, err := s.Running(ctx)
		if err != nil || !running {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("it is still there after %s; --wait gives it longer, and its log says what it does",
				s.Wait)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// Start starts it.
func (s HostServer) Start(ctx context.Context) error {
	if s.Plan.Start.Unit != "" {
		if u, err := s.Units.Unit(ctx, s.Plan.Start.Unit); err == nil && u.ActiveState == "failed" {
			if err := s.Units.ResetFailed(ctx, s.Plan.Start.Unit); err != nil { // a limit of starts may hold
				return err
			}
		}
		return s.Units.Start(ctx, s.Plan.Start.Unit)
	}
	_, err := s.Plan.Start.Command.Start()
	return err
}

// startTime is how long a server may take until its process is recognised.
const startTime = 3 * time.Second

// Answers waits until it answers.
func (s HostServer) Answers(ctx context.Context) error {
	begun := time.Now()
	for {
		err := answers(ctx, s.Plan.Engine, s.Plan.Socket, s.Plan.Port)
		if err == nil {
			return nil
		}
		running, failed := s.Running(ctx)
		switch {
		case failed != nil:
			return failed
		case !running && time.Since(begun) > startTime:
			return fmt.Errorf("it ended, and its log says why (%w)", err)
		case time.Since(begun) > s.Wait:
			return fmt.Errorf("no answer within %s: %w", s.Wait, err)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Holders gives the processes of a host that have files below directories open.
func Holders(h *host.Host) func(ctx context.Context, dirs []string) ([]zfslayout.Holder, error) {
	return func(ctx context.Context, dirs []string) ([]zfslayout.Holder, error) {
		procs, err := h.Proc.Processes(procfs.Options{})
		if err != nil {
			return nil, fmt.Errorf("read the process table: %w", err)
		}
		holders := []zfslayout.Holder{}
		for _, p := range procs {
			if p.Kernel {
				continue
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			open, err := h.Proc.OpenFiles(p.PID)
			if err != nil && !errors.Is(err, procfs.ErrExited) {
				return nil, fmt.Errorf("read the open files of process %d: %w", p.PID, err)
			}
			for _, dir := range dirs {
				if slices.ContainsFunc(open, func(name string) bool { return mountinfo.Within(name, dir) }) {
					holders = append(holders, zfslayout.Holder{PID: p.PID, Name: p.Comm})
					break
				}
			}
		}
		return holders, nil
	}
}

// MountTable reads what this process sees mounted on a host.
func MountTable(h *host.Host) func() (mountinfo.Mounts, error) {
	return func() (mountinfo.Mounts, error) { return mountinfo.Read(h.Root) }
}

// startOf finds how a server is stopped and started again. units is nil where systemd does not run.
func startOf(ctx context.Context, proc procfs.FS, inst engine.Instance, procs []procfs.Process, all []engine.Instance,
	units Units) zfslayout.Start {
	at := slices.IndexFunc(procs, func(p procfs.Process) bool { return p.ID == inst.Main })
	if at < 0 {
		return zfslayout.Start{Trouble: "it has ended"}
	}
	if unit := unitOf(procs[at]); units != nil && unit != "" {
		for _, other := range all {
			i := slices.IndexFunc(procs, func(p procfs.Process) bool { return p.ID == other.Main })
			if other.Main != inst.Main && i >= 0 && unitOf(procs[i]) == unit {
				return zfslayout.Start{Trouble: unit + " runs " + other.Name() + ", too"}
			}
		}
		u, err := units.Unit(ctx, unit)
		if err == nil {
			err = u.Usable() // one that was masked while it ran is stopped, and never starts again
		}
		if err != nil {
			return zfslayout.Start{Trouble: err.Error()}
		}
		if !runs(inst, u.MainPID) {
			return zfslayout.Start{Trouble: fmt.Sprintf("it is in %s, whose main process is another one (%d), such "+
				"as a cluster manager or cron: to stop that would stop more", unit, u.MainPID)}
		}
		return zfslayout.Start{Unit: unit}
	}
	for _, m := range inst.Members {
		if m.Part == engine.PartSupervisor {
			return zfslayout.Start{Trouble: fmt.Sprintf("a supervisor, process %d, which is no service, starts it "+
				"anew", m.ID.PID)}
		}
	}
	cmd, err := relaunch.Of(proc, procs[at])
	if err != nil {
		return zfslayout.Start{Trouble: err.Error()}
	}
	return zfslayout.Start{Command: &cmd}
}

// runs says whether a process is the server itself, or what starts it anew.
func runs(inst engine.Instance, pid int) bool {
	return inst.Main.PID == pid || slices.ContainsFunc(inst.Members, func(m engine.Member) bool {
		return m.Part == engine.PartSupervisor && m.ID.PID == pid
	})
}

// unitOf is the service that a process runs in; "" where it is none, as in a session.
func unitOf(p procfs.Process) string {
	for _, where := range p.Cgroups {
		if strings.Contains(where, "/user.slice/") {
			continue
		}
		for at := filepath.Clean(where); at != "/" && at != "."; at = filepath.Dir(at) {
			if strings.HasSuffix(at, ".service") {
				return filepath.Base(at)
			}
		}
	}
	return ""
}
