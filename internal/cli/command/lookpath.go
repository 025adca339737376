package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// LookPath finds a command as a shell would: a name with a slash is a path, any other is looked for in PATH.
func LookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	denied := error(nil)
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, name)
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("not found in PATH: %w", fs.ErrNotExist)
}

func executable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return &fs.PathError{Op: "run", Path: file, Err: syscall.EISDIR}
	}
	return unix.Access(file, unix.X_OK)
}
