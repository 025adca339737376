// Package lab runs the project's own root tests on kernels, releases of systemd and cgroup modes that the machine at
// hand has not: in virtual machines, plain QEMU emulation. The driver is a test behind the build tag "lab";
// `make lab MODE=unified` runs it. Outside that tag are the modes and what reads a machine's console.
package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Section is a part of a machine's console output between its two markers.
type Section struct {
	Name   string
	Status int           // exit status of what printed it
	Ended  time.Duration // since the machine's boot
	Lines  []string
}

// Text gives the lines as printed.
func (s Section) Text() string { return strings.Join(s.Lines, "\n") + "\n" }

// Passed says whether a test of that name ended with PASS in the output of a test binary.
func (s Section) Passed(test string) bool {
	return slices.ContainsFunc(s.Lines, func(line string) bool {
		return strings.HasPrefix(line, "--- PASS: "+test+" (")
	})
}

var (
	beginMarker = regexp.MustCompile(`<<<lab begin (\S+)>>>$`)
	endMarker   = regexp.MustCompile(`^<<<lab end (\S+) (\d+) (\d+\.\d+)>>>$`)
)

const doneMarker = "<<<lab done>>>"

// Transcript reads a machine's console output. Lines outside sections, the kernel's, are left out. The
// sections read so far come with the error when the machine did not get to its end.
func Transcript(r io.Reader) ([]Section, error) {
	var all []Section
	var open *Section
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if line == doneMarker && open == nil {
			return all, nil
		}
		if m := beginMarker.FindStringSubmatch(line); m != nil {
			if open != nil {
				return all, fmt.Errorf("section %q begins inside %q", m[1], open.Name)
			}
			open = &Section{Name: m[1]}
			continue
		}
		if open == nil {
			continue
		}
		if m := endMarker.FindStringSubmatch(line); m != nil {
			if m[1] != open.Name {
				return all, fmt.Errorf("section %q ends inside %q", m[1], open.Name)
			}
			status, err := strconv.Atoi(m[2])
			if err != nil {
				return all, fmt.Errorf("status of section %q: %w", open.Name, err)
			}
			ended, err := time.ParseDuration(m[3] + "s")
			if err != nil {
				return all, fmt.Errorf("end of section %q: %w", open.Name, err)
			}
			open.Status, open.Ended = status, ended
			open.Lines = trimLast(open.Lines)
			all = append(all, *open)
			open = nil
			continue
		}
		open.Lines = append(open.Lines, line)
	}
	if err := lines.Err(); err != nil {
		return all, fmt.Errorf("read the console: %w", err)
	}
	if open != nil {
		return append(all, *open), fmt.Errorf("the machine ended inside section %q", open.Name)
	}
	return all, errors.New("the machine ended before it was done")
}

// trimLast drops the line break that the guest puts before an end marker, in case what ran before it
// ended without one.
func trimLast(lines []string) []string {
	if n := len(lines); n > 0 && lines[n-1] == "" {
		return lines[:n-1]
	}
	return lines
}
