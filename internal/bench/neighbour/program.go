package neighbour

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Program gives the path of the program that hogs run: a copy of binary, in dir. Under bulkhead's own path host.others
// would leave hogs where they are, as it does with calls of bulkhead. It is binary itself where dir is on a file system
// mounted noexec.
func Program(binary, dir string) (string, error) {
	path := filepath.Join(dir, "neighbour")
	err := os.Link(binary, path)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMLINK) {
		err = copyProgram(binary, path)
	}
	if err != nil {
		return "", fmt.Errorf("make the program of neighbours: %w", err)
	}
	if unix.Access(path, unix.X_OK) != nil {
		return binary, nil
	}
	return path, nil
}

// copyProgram copies an executable file.
func copyProgram(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
