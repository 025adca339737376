// Package hosttest makes hosts out of text, for tests: a txtar archive of files below /proc, /sys
// and /etc, as Capture writes it or a hand does.
package hosttest

import (
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
)

// FromArchive unpacks a txtar archive into a temporary directory and returns the host it describes.
// An entry of the form "symlink: TARGET" is a symbolic link, "escaped: a\0b" has its bytes written
// out; one whose name ends with "/" is an empty directory.
func FromArchive(t testing.TB, text string) *host.Host {
	t.Helper()
	return host.New(linuxtest.Unpack(t, text))
}

// Load is FromArchive for a fixture of package host, by its name: "centos7", "debian12",
// "fournodes", "hybrid", "container".
func Load(t testing.TB, name string) *host.Host {
	t.Helper()
	return FromArchive(t, linuxtest.Text(t, name))
}
