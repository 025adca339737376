package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/process"
)

// swapName is the swap file in the work directory.
const swapName = "swap"

// makeSwap makes the run's swap file and puts it on, before swap that is there already: what a scenario swaps goes into
// it.
func (r *run) makeSwap(ctx context.Context) error {
	size := int64(r.number(r.scenario.Swap, 0)) << 20
	if size <= 0 {
		return nil
	}
	r.progress.Phase("making swap")
	file := filepath.Join(r.dir, swapName)
	if err := neighbour.PrepareFile(file, size); err != nil {
		return err
	}
	r.undo.Add("take the swap file away",
		func(ctx context.Context) error { return takeSwap(ctx, file, r.paths, r.supervisor) })
	for _, args := range [][]string{{"mkswap", file}, {"swapon", "--priority", "100", file}} {
		var said bytes.Buffer
		if err := r.supervisor.Run(ctx,
			process.Spec{Args: append([]string{r.paths[args[0]]}, args[1:]...), Stdout: &said,
				Stderr: &said}); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return &process.RequirementError{
				Reason: fmt.Sprintf("it needs a swap file, and %s of one in %q failed: %v\n%s", args[0], r.dir, err,
					process.LastLines(said.String(), 3)),
				Hint: "--dir DIR on another file system (ext4 or XFS), or the lab (docs/lab.md)",
			}
		}
	}
	return nil
}

// takeSwap puts a swap file off and removes it. One that is not there, or not on, is fine: the kernel is asked, as a
// run may have been interrupted or killed at any moment.
func takeSwap(ctx context.Context, file string, paths process.Programs, n *process.Supervisor) error {
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var list, said bytes.Buffer
	if err := n.Run(ctx, process.Spec{Args: []string{paths["swapon"], "--show=NAME", "--noheadings", "--raw"},
		Stdout: &list, Stderr: &said}); err != nil {
		return fmt.Errorf("list swap: %w\n%s", err, process.LastLines(said.String(), 3))
	}
	if slices.Contains(strings.Fields(list.String()), file) {
		if err := n.Run(ctx, process.Spec{Args: []string{paths["swapoff"], file}, Stderr: &said}); err != nil {
			return fmt.Errorf("put swap off: %w\n%s; hint: `swapoff %s` once there is memory for what is in it", err,
				process.LastLines(said.String(), 3), file)
		}
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("remove the swap file: %w", err)
	}
	return nil
}
