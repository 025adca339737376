// Package zfs reads the pools, datasets and snapshots of OpenZFS by its programs, and its cache by the kernel's files.
//
// The programs zfs(8) and zpool(8) are called by full path, with a time limit and without a shell. Their output is that
// of -H and -p, and for vdevs that of zpool status -P. A program that waits inside the kernel for a hung pool cannot be
// killed: it is left behind, and the call returns with ErrTime all the same. All is safe for concurrent use.
package zfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"bulkhead/internal/linux/sysroot"
)

// Limit is how long one call may take, unless Tools say otherwise.
const Limit = 10 * time.Second

// OfCopy is the property of a data set that says which copy of `zfs clone` it was made for.
const OfCopy = "bulkhead:clone"

// ErrTime says that a program gave no answer in its time.
var ErrTime = errors.New("no answer in time: a pool may hang; `dmesg` tells of its disks")

// ErrNoTools says that the programs are not installed.
var ErrNoTools = errors.New("zfs(8) and zpool(8) are not in /usr/sbin, /sbin or /usr/local/sbin")

// Tools are the programs of OpenZFS.
type Tools struct {
	ZFS, Zpool string        // full paths
	Limit      time.Duration // of one call; 0 is the package's
	// Running counts the programs that run now, those that were left behind too; nil: nobody counts.
	Running *atomic.Int32
	// Exec runs a program instead of the kernel: for tests, which have no pools.
	Exec func(program string, args ...string) (string, error)
}

// Find looks for the programs on a host.
func Find(root *sysroot.FS) (Tools, error) {
	for _, dir := range []string{"/usr/sbin/", "/sbin/", "/usr/local/sbin/"} {
		if root.Exists(dir+"zfs") && root.Exists(dir+"zpool") {
			return Tools{ZFS: dir + "zfs", Zpool: dir + "zpool"}, nil
		}
	}
	return Tools{}, ErrNoTools
}

// Run calls one of the programs and gives what it wrote to its standard output. The error holds what it wrote to the
// other one. A change that Run gave up waiting for may still happen: read back before a second try.
func (t Tools) Run(ctx context.Context, program string, args ...string) (string, error) {
	if t.Exec != nil {
		return t.Exec(program, args...)
	}
	limit := t.Limit
	if limit == 0 {
		limit = Limit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type answer struct {
		out, said string
		err       error
	}
	done := make(chan answer, 1)
	count := func(n int32) {
		if t.Running != nil {
			t.Running.Add(n)
		}
	}
	count(1)
	go func() {
		var out, said bytes.Buffer
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.Stdout, cmd.Stderr = &out, &said
		cmd.WaitDelay = time.Second // a child of it may hold the pipes open
		err := cmd.Run()
		count(-1)
		done <- answer{out.String(), strings.TrimSpace(said.String()), err}
	}()
	what := strings.Join(append([]string{program}, args...), " ")
	select {
	case a := <-done:
		switch {
		case a.err == nil:
			return a.out, nil
		case ctx.Err() != nil: // it was killed
		case a.said != "":
			return "", fmt.Errorf("run %q: %s: %w", what, a.said, a.err)
		default:
			return "", fmt.Errorf("run %q: %w", what, a.err)
		}
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "", fmt.Errorf("run %q within %s: %w", what, limit, ErrTime)
	}
	return "", fmt.Errorf("run %q: %w", what, ctx.Err())
}
