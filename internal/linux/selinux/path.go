package selinux

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"
)

// Component is a directory, a link or a file on the way to a path, "/" the first.
type Component struct {
	Path  string // without links
	Class string // of SELinux: "dir", "lnk_file", "file", "sock_file" and so on
	Label string // its context; "" is none
}

// Way is the way that the kernel goes to a path. Missing is the part of it that is not there, "" when all is.
type Way struct {
	Components []Component
	Missing    string
}

// Last is what the way ends at: of a path of which a part is missing, the last directory that is there.
func (w Way) Last() Component { return w.Components[len(w.Components)-1] }

// mostLinks is how many links one path may go through (path_resolution(7)).
const mostLinks = 40

var classes = map[fs.FileMode]string{0: "file", fs.ModeDir: "dir", fs.ModeSymlink: "lnk_file",
	fs.ModeSocket: "sock_file", fs.ModeNamedPipe: "fifo_file", fs.ModeDevice: "blk_file",
	fs.ModeDevice | fs.ModeCharDevice: "chr_file"}

// Way follows an absolute path as a process sees it, one component after the other, links too. A file system that does
// not answer is an error after some seconds.
func (h Host) Way(pid int, name string) (Way, error) {
	if !path.IsAbs(name) {
		return Way{}, fmt.Errorf("follow %q: it is not absolute", name)
	}
	w, err := sysroot.WithTimeout(h.Root, fmt.Sprintf("%d label %s", pid, name), func() (Way, error) {
		return h.follow(pid, name)
	})
	if err != nil {
		return Way{}, fmt.Errorf("follow %q as process %d sees it: %w", name, pid, sysroot.Cause(err))
	}
	return w, nil
}

// view is where the root directory of a process is. A captured host has one for all.
func (h Host) view(pid int) string {
	if !h.Root.Live() {
		return ""
	}
	return fmt.Sprintf("/proc/%d/root", pid)
}

func (h Host) follow(pid int, name string) (w Way, err error) {
	base := h.view(pid)
	root, err := h.component(base, "/", "dir")
	if err != nil {
		return w, err
	}
	w.Components = append(w.Components, root)
	done, pending := "/", strings.Split(name, "/")
	for links := 0; len(pending) > 0; {
		part := pending[0]
		pending = pending[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		info, err := h.Root.Lstat(path.Join("/", base, next))
		if errors.Is(err, fs.ErrNotExist) {
			w.Missing = path.Join(append([]string{next}, pending...)...)
			return w, nil
		}
		if err != nil {
			return w, err
		}
		c, err := h.component(base, next, classes[info.Mode().Type()])
		if err != nil {
			return w, err
		}
		w.Components = append(w.Components, c)
		if c.Class != "lnk_file" {
			done = next
			continue
		}
		if links++; links > mostLinks {
			return w, errors.New("too many symbolic links")
		}
		target, err := h.Root.Readlink(path.Join("/", base, next))
		if err != nil {
			return w, err
		}
		if path.IsAbs(target) {
			done = "/"
		}
		pending = append(strings.Split(target, "/"), pending...)
	}
	return w, nil
}

func (h Host) component(base, name, class string) (Component, error) {
	label, err := h.Label(path.Join("/", base, name))
	if err != nil && !errors.Is(err, ErrNoLabel) {
		return Component{}, fmt.Errorf("read the label of %q: %w", name, err)
	}
	return Component{Path: name, Class: class, Label: label}, nil
}

// Labelling is where the labels of a file system come from.
type Labelling struct {
	Mount string // where it is mounted
	// Context is the one that the mount option context= gives every file; "" where there is none.
	Context string
	// Own says that files have labels of their own, which restorecon(8) may set. Without it and without Context the
	// loaded policy gives one label to all.
	Own bool
}

// Labelling tells it of the file system that a real path is on, as a process sees it. The kernel writes seclabel and
// context= among the options of a file system (selinux_sb_show_options of security/selinux/hooks.c).
func (h Host) Labelling(pid int, name string) (l Labelling, err error) {
	text, err := h.Root.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return l, err
	}
	mounts, err := mountinfo.Parse(text)
	if err != nil {
		return l, err
	}
	m, found := mounts.Of(path.Clean(name))
	if !found {
		return l, fmt.Errorf("%q is on no mount that process %d sees", name, pid)
	}
	l.Mount = m.Point
	for _, o := range m.Super {
		if value, is := strings.CutPrefix(o, "context="); is {
			l.Context = strings.Trim(value, `"`)
		}
		l.Own = l.Own || o == "seclabel"
	}
	return l, nil
}
