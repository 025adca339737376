package neighbour

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Program gives the path of the program that hogs run: a copy of binary, in dir. Under bulkhead's own path host.others
// would leave hogs where they are, as it does with calls of bulkhead. It is binary itself where dir is on a file system
// mounted noexec.
func Program(binary, dir string) (string, error) {
	path := filepath.Join(dir, "neighbour")
	err := os.Link(binary, path)
	if errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EMLINK) {
		err = copyProgram(binary, path)
	}
	if err != nil {
		return "", fmt.Errorf("make the program of neighbours: %w", err)
	}
	const execute = 1 // X_OK of access(2), which a file system mounted noexec refuses
	if errors.Is(syscall.Access(path, execute), syscall.EACCES) {
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
