package lab

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Record is what a machine said on a day, as docs/lab keeps it.
type Record struct {
	Date     string // 2026-11-22
	At       string // with the time of day, where it is noted
	Mode     string
	Sections []Section
}

var (
	recordMode    = regexp.MustCompile(`^Root tests in an emulated machine, (?:cgroup )?mode ([a-z-]+)`)
	recordDate    = regexp.MustCompile(`^((\d{4}-\d\d-\d\d)(?: \d\d:\d\d)?);`)
	recordSection = regexp.MustCompile(`^== (\S+): exit status (\d+)$`)
)

// ReadRecord reads one back.
func ReadRecord(r io.Reader) (Record, error) {
	var rec Record
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := recordMode.FindStringSubmatch(line); m != nil && rec.Mode == "" {
			rec.Mode = m[1]
		} else if m := recordDate.FindStringSubmatch(line); m != nil && rec.Date == "" {
			rec.At, rec.Date = m[1], m[2]
		} else if m := recordSection.FindStringSubmatch(line); m != nil {
			s := Section{Name: m[1], Status: 1}
			if m[2] == "0" {
				s.Status = 0
			}
			rec.Sections = append(rec.Sections, s)
		} else if n := len(rec.Sections); n > 0 {
			rec.Sections[n-1].Lines = append(rec.Sections[n-1].Lines, line)
		}
	}
	if err := lines.Err(); err != nil {
		return rec, fmt.Errorf("read a record: %w", err)
	}
	if rec.Mode == "" || rec.Date == "" || len(rec.Sections) == 0 {
		return rec, fmt.Errorf("no record of a machine: mode %q, date %q, %d sections", rec.Mode, rec.Date,
			len(rec.Sections))
	}
	return rec, nil
}

// Records reads all below a directory, the newest first.
func Records(dir fs.FS) ([]Record, error) {
	names, err := fs.Glob(dir, "*.txt")
	if err != nil {
		return nil, fmt.Errorf("list the records: %w", err)
	}
	var all []Record
	for _, name := range names {
		f, err := dir.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open a record: %w", err)
		}
		rec, err := ReadRecord(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, rec)
	}
	slices.SortStableFunc(all, func(a, b Record) int { return strings.Compare(b.At, a.At) })
	return all, nil
}

// result says how a test, "package.Test", or all that ran of a package ended in a record; "" where it did not run.
func (r Record) result(test string) string {
	for _, s := range r.Sections {
		// Those after a restart of the machine stand in a section of their own.
		rest, ok := strings.CutPrefix(test, strings.TrimPrefix(s.Name, "again/"))
		name, one := strings.CutPrefix(rest, ".")
		switch {
		case !ok || rest != "" && !one:
		case one && s.Passed(name), !one && s.Status == 0:
			return "passed"
		case !one || slices.ContainsFunc(s.Lines, func(l string) bool {
			return strings.HasPrefix(l, "=== RUN   "+name) || strings.HasPrefix(l, "--- FAIL: "+name+" (")
		}):
			return "failed"
		}
	}
	return ""
}

// Capability is a row of the matrix: what holds, and the tests that show it.
type Capability struct {
	What  string
	Tests []string // "package.Test", or a package for all its tests behind the build tag root
	On    func(Mode) bool
}

func withSystemd(m Mode) bool    { return m.Systemd }
func withoutSystemd(m Mode) bool { return !m.Systemd }

// Matrix are the rows.
var Matrix = []Capability{
	{"the host is read right: hierarchies, processes, devices, process events", []string{"internal/host"}, nil},
	{"directories, moves and counters of control groups", []string{"internal/cgroup"}, nil},
	{"the model of control groups and the kernel behave the same", []string{"internal/cgroup/conformance"}, nil},
	{"every knob's file is there, is written, and reads back", []string{"internal/knob"}, nil},
	{"apply twice changes nothing, release gives the host back",
		[]string{"internal/control.TestApplyTwiceChangesNothingAndReleaseGivesTheHostBack"}, withoutSystemd},
	{"`kill -9` after every step of an apply, then rollback: all as before",
		[]string{"internal/control.TestKillAfterEveryStepThenRollback"}, withoutSystemd},
	{"a CPU limit is measured", []string{"internal/control.TestCPULimitHolds"}, withoutSystemd},
	{"an IO limit is measured", []string{"internal/control.TestIOLimitsHold"}, withoutSystemd},
	{"a memory limit ends the hog and nothing else",
		[]string{"internal/control.TestMemoryLimitKillsTheHogAndNothingElse"}, withoutSystemd},
	{"a limit on tasks holds", []string{"internal/control.TestTasksLimitHolds"}, withoutSystemd},
	{"freeze and thaw", []string{"internal/control.TestFreezeAndThaw"}, withoutSystemd},
	{"the Oracle document's case", []string{"internal/control.TestOracleDocument"}, withoutSystemd},
	{"the model of systemd and the real one behave the same", []string{"internal/systemd/conformance.TestSystemd"},
		withSystemd},
	{"a policy over real MariaDB and PostgreSQL services: apply, verify, three reloads, restart of database and " +
		"agent, release: all as before", []string{"test/script.TestServices"}, withSystemd},
	{"the ScyllaDB document's two slices, and a command of another user in one", []string{"test/script.TestSlices"},
		withSystemd},
	{"a unit is governed by its own properties", []string{"internal/control.TestUnitIsGovernedByItsProperties"},
		withSystemd},
	{"a unit gets its own limit back", []string{"internal/control.TestUnitGetsItsOwnLimitBack"}, withSystemd},
	{"`adopt: next-start`", []string{"internal/control.TestAdoptedUnitMovesAtItsNextStart"}, withSystemd},
	{"loose processes sit with a keeper", []string{"internal/control.TestLooseProcessesSitWithTheKeeper"}, withSystemd},
	{"`from_unit`: part of a unit", []string{"internal/control.TestPartOfAUnitNeedsAsking"}, withSystemd},
	{"`slice:` an administrator's slice", []string{"internal/control.TestSliceOfAnAdministrator"}, withSystemd},
	{"shares over the real tree: what plan and status print is what a CPU with a hog in every unit gives",
		[]string{"internal/control.TestSharesOverTheRealTree"}, withSystemd},
	{"a limit on buffered writes is measured on v2, and called not enforced on v1",
		[]string{"internal/control.TestBufferedWritesAreHeldOnV2Alone"}, withSystemd},
	{"`bulkhead.service` installed: ready when all is in force, reload, refused reload, `kill -9`, three reloads of " +
		"systemd, restart of databases and agent", []string{"test/packaging.TestInstalled"}, withSystemd},
	{"the same after a reboot: in force before the databases start; then release and uninstall: all as before",
		[]string{"test/packaging.TestInstalledAfterReboot"}, withSystemd},
	{"policies with every key under `bulkhead.service`: what its sandbox forbids is refused before anything is " +
		"changed, and is in force after `unit --write`", []string{"test/packaging.TestEveryKeyUnderTheUnit"},
		withSystemd},
	{"the init script: start, status, reload, stop", []string{"test/packaging.TestInitScript"}, withoutSystemd},
	{"a policy over a real MariaDB: apply, verify, restart of the database, and of the agent by its init script",
		[]string{"test/packaging.TestInitInstalled"}, withoutSystemd},
	{"the same after a reboot: in force when the database takes its first connection; then release and uninstall: " +
		"all as before", []string{"test/packaging.TestInitInstalledAfterReboot"}, withoutSystemd},
	{"`kill -9` after steps of an apply on units, then rollback: all as before",
		[]string{"internal/control.TestUnitsKillAfterEveryStep"}, withSystemd},
}

// Cell says what is known of a capability in a mode.
func (c Capability) Cell(m Mode, records []Record) string {
	if c.On != nil && !c.On(m) {
		return "–"
	}
	oldest := ""
	for _, test := range c.Tests {
		at := slices.IndexFunc(records, func(r Record) bool { return r.Mode == m.Name && r.result(test) != "" })
		if at < 0 {
			return "never run"
		}
		if records[at].result(test) != "passed" {
			return "failed " + records[at].Date
		}
		if oldest == "" || records[at].Date < oldest {
			oldest = records[at].Date
		}
	}
	return oldest
}

// Table draws the matrix for some modes: a date is that of the newest record in which the tests passed.
func Table(modes []Mode, records []Record) string {
	var b strings.Builder
	b.WriteString("| what | test |")
	for _, m := range modes {
		fmt.Fprintf(&b, " `%s` |", m.Name)
	}
	b.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(modes)) + "\n")
	for _, c := range Matrix {
		var cells []string
		for _, m := range modes {
			cells = append(cells, c.Cell(m, records))
		}
		if !slices.ContainsFunc(cells, func(s string) bool { return s != "–" }) {
			continue
		}
		var tests []string
		for _, t := range c.Tests {
			tests = append(tests, "`"+path.Base(t)+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.What, strings.Join(tests, ", "), strings.Join(cells, " | "))
	}
	return b.String()
}
