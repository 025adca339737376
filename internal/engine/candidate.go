package engine

import (
	"bulkhead/internal/linux/procfs"
)

// Ordinary says that an executable is no server's, no helper's and no interpreter's: a process that runs it is nothing
// to this package, whatever its arguments are. Of one that cannot be read nobody knows.
func Ordinary(exe string) bool {
	if exe == "" {
		return false
	}
	is := programOf(&procfs.Process{Exe: exe, Args: anyArgs})
	return is.server == nil && is.tools == nil && !is.script
}

var anyArgs = []string{""}

// MayServe says whether a process may be the main process of a server, by its executable and its arguments alone. A no
// is certain; without an executable nothing is.
func MayServe(p *procfs.Process) bool {
	if p.Exe == "" {
		return true
	}
	r := programOf(p).server
	return r != nil && r.identity(p)
}
