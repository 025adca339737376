package bootline

import (
	"context"
	"fmt"
	"os/exec"
	"path"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
)

// File is bulkhead's own: update-grub reads all of the directory by name, after /etc/default/grub.
const File = "/etc/default/grub.d/90-bulkhead.cfg"

// Line is the kernel command line that kernel-install(8) writes into the entries that it makes.
const Line = "/etc/kernel/cmdline"

// Host says where the boot loader is.
type Host struct {
	Root *sysroot.FS
	// Dir is the directory to write below; "" is a captured host, which cannot be changed.
	Dir string
	// Run runs a tool of the boot loader, by its path; nil is that of this machine. For tests.
	Run func(ctx context.Context, program string, args ...string) error
}

// run has a program of the boot loader do something.
func (h Host) run(ctx context.Context, program string, args ...string) error {
	switch {
	case h.Run != nil:
		return h.Run(ctx, program, args...)
	case h.Dir == "" || !h.Root.Live():
		return change.ErrCaptured
	}
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// entries are the files of the boot loader specification with what the kernels are started with.
func (h Host) entries() (files []string) {
	for _, dir := range []string{"/boot/loader/entries", "/efi/loader/entries", "/boot/efi/loader/entries"} {
		names, _ := h.Root.ReadDir(dir) // one that is not there has none
		for _, name := range names {
			if path.Ext(name) == ".conf" {
				files = append(files, path.Join(dir, name))
			}
		}
	}
	return files
}

// values are those of an argument in a command line, in order.
func values(line, name string) (all []string) {
	for word := range strings.FieldsSeq(line) {
		if key, v, is := strings.Cut(word, "="); is && plain(key) == plain(name) {
			all = append(all, v)
		}
	}
	return all
}

// lastOf is the last one, "" for none.
func lastOf(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// plain is a name as the kernel compares it: "-" in it is "_".
func plain(name string) string { return strings.ReplaceAll(name, "-", "_") }
