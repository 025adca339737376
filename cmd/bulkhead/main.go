// Command bulkhead isolates the database instances of a Linux host from each other and from their
// neighbours with cgroups.
package main

import (
	"os"
	"runtime"

	"bulkhead/internal/cli"
)

// The first goroutine stays on the process's first thread. `bulkhead run` becomes its command by
// execve(2), which keeps the attributes of the calling thread, and those that whoever started us has
// set (a parent-death signal, a timer slack, …) are on the first one.
func init() { runtime.LockOSThread() }

func main() { os.Exit(cli.Main(os.Args[1:], os.Exit)) }
