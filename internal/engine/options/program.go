package options

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/linux/procfs"
)

// LeadingVersion matches a version at the start of a text: "10.11.19" of "10.11.19-MariaDB".
var LeadingVersion = regexp.MustCompile(`^\d+(\.\d+)+`)

// PathVersion finds a version in a path: an element that is one ("/opt/mysql/8.0.36/bin"), or one that
// starts with a product's name ("mysql-8.0.36-linux-glibc2.28-x86_64").
func PathVersion(name string, products ...string) string {
	named := false
	for elem := range strings.SplitSeq(strings.ToLower(name), "/") {
		product := slices.ContainsFunc(products, func(p string) bool { return strings.HasPrefix(elem, p) })
		if product {
			_, elem, _ = strings.Cut(elem, "-")
			elem = strings.TrimLeft(elem, "abcdefghijklmnopqrstuvwxyz-") // percona-server-8.0.36
		}
		if v := elementVersion.FindStringSubmatch(elem); v != nil && (product || named) {
			return v[1]
		}
		named = named || product
	}
	return ""
}

var elementVersion = regexp.MustCompile(`^v?(\d+(?:\.\d+)*)(?:-|$)`)

// ProgramName is the base name of what a process calls itself: of its first argument, up to a blank
// when it wrote a title there ("/usr/bin/redis-server *:6379").
func ProgramName(p *procfs.Process) string {
	if len(p.Args) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(p.Args[0], " ")
	return path.Base(name)
}

// IsProgram says whether a process is one of the programs by its name and by its executable. An
// executable that cannot be read is replaced by the kernel's name for the process, which a script
// named like a server has too: then the interpreter is the first argument and the names differ.
func IsProgram(p *procfs.Process, names, executables []string) bool {
	name := BaseProgram(ProgramName(p))
	if !slices.Contains(names, name) {
		return false
	}
	if p.Exe != "" {
		return slices.Contains(executables, BaseProgram(path.Base(p.Exe)))
	}
	return slices.Contains(executables, BaseProgram(p.Comm))
}

// BaseProgram takes the endings of debug and versioned builds off a program's name: "mysqld-debug",
// "mysqld-8.0.36".
func BaseProgram(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "-debug"), "-max")
	if base, version, ok := strings.Cut(name, "-"); ok && version != "" && strings.Trim(version, "0123456789.") == "" {
		return base
	}
	return name
}

// Title returns what a process that wrote a title shows: its arguments in one line, without the
// padding.
func Title(p *procfs.Process) string {
	return strings.TrimRight(strings.Join(p.Args, " "), " \x00")
}
