package dblogin

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecret bounds a file with a data source name, in bytes.
const maxSecret = 64 << 10

// OpenFileError says that others may read a file with a password.
type OpenFileError struct {
	Path string
	Mode os.FileMode
}

func (e *OpenFileError) Error() string {
	return fmt.Sprintf("the file of a DSN, %q, is open to others (mode %04o): chmod 600 it", e.Path, e.Mode)
}

// Secret is a data source name as it was given, or what stands in the file that "@PATH" names: what is on a command
// line is for all to read. The error is an *OpenFileError where others may read the file.
func Secret(given string) (dsn string, err error) {
	path, isFile := strings.CutPrefix(given, "@")
	if !isFile {
		return given, nil
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		return "", fmt.Errorf("the file of a DSN cannot be read: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", &OpenFileError{path, info.Mode().Perm()}
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the file of a DSN cannot be read: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret))
	if err != nil {
		return "", fmt.Errorf("the file of a DSN cannot be read: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
