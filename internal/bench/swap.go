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
)

// swapName is the swap file in the work directory.
const swapName = "swap"

// swapPrograms make a swap file, and put it on and off.
var swapPrograms = []program{{name: "mkswap", pkg: "util-linux"}, {name: "swapon", pkg: "mount"}, {name: "swapoff", pkg: "mount"}}

// makeSwap makes the run's swap file and puts it on, before swap that is there already: what a scenario swaps goes into it.
func (r *run) makeSwap(ctx context.Context) error {
	size := int64(r.number(r.scenario.Swap, 0)) << 20
	if size <= 0 {
		return nil
	}
	r.progress.phase("making swap")
	file := filepath.Join(r.dir, swapName)
	if err := prepareHogFile(file, size); err != nil {
		return err
	}
	r.undo.add("take the swap file away", func(ctx context.Context) error { return takeSwap(ctx, file, r.paths, r.nursery) })
	for _, args := range [][]string{{"mkswap", file}, {"swapon", "--priority", "100", file}} {
		var said bytes.Buffer
		if err := r.nursery.run(ctx, spec{args: append([]string{r.paths[args[0]]}, args[1:]...), stdout: &said, stderr: &said}); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return &RequirementError{
				Reason: fmt.Sprintf("it needs a swap file, and %s of one in %q failed: %v\n%s", args[0], r.dir, err, lastLines(said.String(), 3)),
				Hint:   "--dir DIR on another file system (ext4 or XFS), or the lab (docs/lab.md)",
			}
		}
	}
	return nil
}

// takeSwap puts a swap file off and removes it. One that is not there, or not on, is fine: the kernel is asked, as a run may have been
// interrupted or killed at any moment.
func takeSwap(ctx context.Context, file string, paths programs, n *nursery) error {
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var list, said bytes.Buffer
	if err := n.run(ctx, spec{args: []string{paths["swapon"], "--show=NAME", "--noheadings", "--raw"}, stdout: &list, stderr: &said}); err != nil {
		return fmt.Errorf("list swap: %w\n%s", err, lastLines(said.String(), 3))
	}
	if slices.Contains(strings.Fields(list.String()), file) {
		if err := n.run(ctx, spec{args: []string{paths["swapoff"], file}, stderr: &said}); err != nil {
			return fmt.Errorf("put swap off: %w\n%s; hint: `swapoff %s` once there is memory for what is in it", err, lastLines(said.String(), 3), file)
		}
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("remove the swap file: %w", err)
	}
	return nil
}
