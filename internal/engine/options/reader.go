// Package options reads how a database server or a helper program was started: its name, its command line, its
// environment, and the option files that it reads, as the process sees them.
//
// The readers take what they understand and leave out the rest: a server's sockets and its working directory say the
// same with more authority. They bound what they read, as another user may own the files.
package options

import (
	"path"
	"strings"
)

// Env returns the environment of a process by name; empty when it cannot be read.
func (s Reader) Env(pid int) map[string]string {
	values := make(map[string]string)
	all, err := s.Source.Environ(pid)
	if err != nil {
		return values
	}
	for _, e := range all {
		if name, value, ok := strings.Cut(e, "="); ok {
			values[name] = value
		}
	}
	return values
}

// Clean is path.Clean, and "" for "".
func Clean(name string) string {
	if name == "" {
		return ""
	}
	return path.Clean(name)
}

// Join is path.Join, and "" when there is no directory.
func Join(dir, name string) string {
	if dir == "" {
		return ""
	}
	return path.Join(dir, name)
}

// ProcessSource tells what a process was started with and where.
type ProcessSource interface {
	// Cwd returns the working directory of a process.
	Cwd(pid int) (string, error)
	// Environ returns the environment a process was started with, as NAME=VALUE.
	Environ(pid int) ([]string, error)
	// ReadRootFile returns a file of at most max bytes as the process sees it (/proc/PID/root).
	ReadRootFile(pid int, path string, max int64) ([]byte, error)
	// UserName returns the name of a user.
	UserName(uid int) string
}

// maxConfig is the most that is read of one configuration file, in bytes.
const maxConfig = 256 << 10

// Reader reads what a process was told, from a source.
type Reader struct{ Source ProcessSource }

// Cwd returns the working directory of a process, "" when it cannot be read.
func (s Reader) Cwd(pid int) string {
	dir, err := s.Source.Cwd(pid)
	if err != nil || !path.IsAbs(dir) {
		return ""
	}
	return path.Clean(dir)
}

// File returns a file as the process sees it; nil when it cannot be read or is larger than maxConfig.
func (s Reader) File(pid int, name string) []byte {
	if !path.IsAbs(name) {
		return nil
	}
	data, err := s.Source.ReadRootFile(pid, path.Clean(name), maxConfig)
	if err != nil {
		return nil
	}
	return append([]byte{}, data...) // an empty file is there: not nil
}

// Holds returns the first of the small files that is there in a directory, as the process sees it.
func (s Reader) Holds(pid int, dir string, names ...string) (string, bool) {
	for _, name := range names {
		if dir != "" && s.File(pid, path.Join(dir, name)) != nil {
			return name, true
		}
	}
	return "", false
}

// Absolute returns a name as it reads in a directory. Without a directory the name stays as it is.
func Absolute(dir, name string) string {
	if name == "" || path.IsAbs(name) || dir == "" {
		return name
	}
	return path.Join(dir, name)
}
