package loaded

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/sepolicy"
)

// Local answers what package remedy asks of a host. Ours says whether a setting, by its name, is one that bulkhead
// made.
type Local struct {
	Root  *sysroot.FS
	Found Host
	Ours  func(name string) bool
}

// Labels are the types that the file contexts give a path and all below it on its file system.
func (l Local) Labels(at string) (string, error) {
	f, asked := l.Found.Ask.Files.(*files)
	if !asked {
		return "", fmt.Errorf("which labels %s should have cannot be asked", at)
	}
	info, err := l.Root.Lstat(at)
	if err != nil {
		return "", fmt.Errorf("look at %s: %w", at, sysroot.Cause(err))
	}
	w := lister{root: l.Root, files: f, tree: at, device: device(info)}
	err = w.add("", "", info)
	return strings.Join(w.lines, "\n"), err
}

type lister struct {
	root   *sysroot.FS
	files  *files
	tree   string
	device uint64
	lines  []string
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}

// classOf is the class of a file by its mode.
func classOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "dir"
	case mode&fs.ModeSymlink != 0:
		return "lnk_file"
	case mode&fs.ModeSocket != 0:
		return "sock_file"
	case mode&fs.ModeNamedPipe != 0:
		return "fifo_file"
	case mode&fs.ModeCharDevice != 0:
		return "chr_file"
	case mode&fs.ModeDevice != 0:
		return "blk_file"
	}
	return "file"
}

// add lists a path and what is below it. Above is the type of its directory.
func (w *lister) add(rel, above string, info fs.FileInfo) error {
	at := path.Join(w.tree, rel)
	if device(info) != w.device {
		return nil
	}
	kind, known := w.files.Expected(at, classOf(info.Mode()))
	switch {
	case !known:
		return fmt.Errorf("no file context gives %s a label: `restorecon -R %s` by hand, or one of its own", at, w.tree)
	case rel == "":
		w.lines = append(w.lines, kind)
	case kind != above:
		w.lines = append(w.lines, kind+" "+strconv.Quote(rel))
	}
	if !info.IsDir() {
		return nil
	}
	names, err := w.root.ReadDir(at)
	if err != nil {
		return fmt.Errorf("list %s: %w", at, sysroot.Cause(err))
	}
	for _, name := range names {
		child, err := w.root.Lstat(path.Join(at, name))
		if err != nil {
			continue // it is gone
		}
		if err := w.add(path.Join(rel, name), kind, child); err != nil {
			return err
		}
	}
	return nil
}

// Module is the text of a module of bulkhead's that is installed.
func (l Local) Module(ctx context.Context, name string) (string, error) {
	return sepolicy.Modules{Host: sepolicy.Host{Root: l.Root}}.Read(ctx, name)
}

// Foreign is a local file context for a tree or for something below it that bulkhead did not make.
func (l Local) Foreign(tree string) (string, error) {
	from := selinux.Host{Root: l.Root}
	store, err := from.Store()
	if err != nil || store == "" {
		return "", err
	}
	texts, err := from.FileContexts(store)
	own := sepolicy.Expression(tree)
	stem := strings.TrimSuffix(own, "(/.*)?")
	for line := range strings.Lines(texts.Local) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] == own && l.Ours(sepolicy.Prefix+"context "+tree) {
			continue
		}
		rest, below := strings.CutPrefix(words[0], stem)
		if below && (rest == "" || rest[0] == '/' || rest[0] == '(' || rest[0] == '.') {
			return words[0], err
		}
	}
	return "", err
}
