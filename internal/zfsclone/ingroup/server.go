// Package ingroup starts the server of a copy in its group, and stops it.
package ingroup

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
	"bulkhead/internal/linux/relaunch"
	"bulkhead/internal/transaction"
	"bulkhead/internal/zfsclone"
	"bulkhead/internal/zfslayout"
	"bulkhead/internal/zfslayout/onhost"
)

// Server is the server of a copy. It is started by the verb run, so from its first instruction it is in its group.
type Server struct {
	onhost.HostServer
	Copy *zfsclone.Plan
}

// mostFiles is how many files the server may have open, as far as this program may give that.
const mostFiles = 65535

// Of gives the server of a copy. run is how this program is called for the verb run, up to its name.
func Of(h *host.Host, p *zfsclone.Plan, run []string, wait time.Duration) Server {
	own, most := syscall.Rlimit{}, uint64(mostFiles)
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err == nil {
		most = min(own.Max, most)
	}
	cmd := relaunch.Command{Path: procfs.SelfExe,
		Args: slices.Concat(run, []string{"--user", p.User, p.Group, "--"}, p.Command()),
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}, Dir: "/", Files: most, FilesM: most,
		Output: p.StartLog()}
	return Server{onhost.HostServer{Host: h, Wait: wait, Plan: &zfslayout.Plan{Instance: p.Name, Engine: p.Engine,
		DataDir: p.DataDir, Told: p.DataDir, Socket: p.Socket(), Port: p.Port,
		Start: zfslayout.Start{Command: &cmd}}}, p}
}

// starting says whether a process that will be the server is on its way into the group.
func (s Server) starting() (bool, error) {
	procs, err := s.Host.Proc.Processes(procfs.Options{})
	if err != nil && !errors.Is(err, procfs.ErrHidden) {
		return false, fmt.Errorf("read the process table: %w", err)
	}
	arguments := s.Copy.Command()
	return slices.ContainsFunc(procs, func(p procfs.Process) bool {
		return len(p.Args) > len(arguments) && slices.Contains(p.Args, "run") &&
			strings.HasSuffix(strings.Join(p.Args, "\x00"), "\x00--\x00"+strings.Join(arguments, "\x00"))
	}), nil
}

// Running says whether the server is there, or on its way.
func (s Server) Running(ctx context.Context) (bool, error) {
	running, err := s.HostServer.Running(ctx)
	if err != nil || running {
		return running, err
	}
	return s.starting()
}

// Stop stops it in order, and waits until it is gone.
func (s Server) Stop(ctx context.Context) error {
	for end := time.Now().Add(s.Wait); ; {
		starting, err := s.starting()
		if err != nil {
			return err
		}
		if !starting {
			return s.HostServer.Stop(ctx)
		}
		if time.Now().After(end) {
			return fmt.Errorf("it has been on its way into the group %s for %s", s.Copy.Group, s.Wait)
		}
		if err := transaction.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// Start starts it in its group, and returns when its process can be told.
func (s Server) Start(ctx context.Context) error {
	pid, err := s.HostServer.Plan.Start.Command.Start()
	if err != nil {
		return err
	}
	for end := time.Now().Add(s.Wait); ; {
		running, err := s.HostServer.Running(ctx)
		if err != nil || running {
			return err
		}
		procs, err := s.Host.Proc.Processes(procfs.Options{PIDs: []int{pid}})
		switch {
		case err != nil && !errors.Is(err, procfs.ErrHidden):
			return fmt.Errorf("look at the server that starts: %w", err)
		case len(procs) == 0:
			return errors.New("it ended at once")
		case time.Now().After(end):
			return fmt.Errorf("it is not there after %s", s.Wait)
		}
		if err := transaction.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
