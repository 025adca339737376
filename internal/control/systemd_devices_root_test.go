//go:build root

package control

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/testhost"
)

// Disks that a machine of the lab uses for nothing else.
const wholeDisk, otherDisk = "/dev/vdh", "/dev/vdg"

// Limits and weights on a disk go from a service that has no io controller without them when they are asked for no
// more, and when the group is released; systemd leaves the lines of a weight where they are. Another service of the
// slice keeps the controller there all the while.
func TestDiskOfAServiceIsGivenBack(t *testing.T) {
	s := newUnitSite(t)
	if os.Getenv("BULKHEAD_LAB") != "1" || s.of("blkio").Version == 1 {
		t.Skip("it takes a spare disk of the lab's machines, and cgroup v2")
	}
	var st unix.Stat_t
	if err := unix.Stat(wholeDisk, &st); err != nil {
		t.Fatal(err)
	}
	disk := fmt.Sprintf("%d:%d ", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	keeps, _ := s.sleeper(81011)
	s.service("keeps", keeps, "IOWeight=90")
	program, rule := s.sleeper(81012)
	unit := s.service("db", program)
	dir := s.unit(unit).ControlGroup
	lines := func(file string) (has []string) {
		t.Helper()
		text, err := testhost.Tree(t).Read(cgroup.Dir{Hierarchy: s.of("blkio").ID, Path: dir}.File(file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, disk) {
				has = append(has, strings.TrimSpace(line))
			}
		}
		return has
	}
	holds := func(when string, weight, limit string) {
		t.Helper()
		got := fmt.Sprint(lines("io.weight"), lines("io.max"))
		if want := regexp.MustCompile(`^\[` + weight + `\] \[` + limit + `\]$`); !want.MatchString(got) {
			t.Errorf("%s: the service has %s on the disk, want %s", when, got, want)
		}
	}
	apply := func(io string) {
		t.Helper()
		sources := s.sources(fmt.Sprintf("groups: {app: {match: [{cmdline: '%s'}], tasks: 99, io: [%s]}}\n", rule, io))
		const model = ", model: {read: {bandwidth: 500MB/s, sequential: 10000, random: 8000}, " +
			"write: {bandwidth: 500MB/s, sequential: 10000, random: 8000}}}"
		sources[0].Text = strings.Replace(sources[0].Text, "host: {", "host: {io: [{on: "+wholeDisk+model+", {on: "+
			otherDisk+model+"], ", 1)
		s.must(api.Request{Verb: "apply", Sources: sources})
	}
	const both = "{on: " + wholeDisk + ", weight: 500, read: {iops: 700}}"
	apply(both)
	holds("after apply", disk+"500", disk+".*riops=700.*")
	apply("{on: " + wholeDisk + ", read: {iops: 700}}")
	holds("without the weight", "", disk+".*riops=700.*")
	apply(both)
	holds("again", disk+"500", disk+".*riops=700.*")
	apply("{on: " + otherDisk + ", weight: 300, write: {iops: 600}}")
	holds("on another disk", "", "")
	apply("")
	holds("without both", "", "")
	apply(both)
	s.must(api.Request{Verb: "release", All: true})
	holds("released", "", "")
}
