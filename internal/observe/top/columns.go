package top

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Column is one column of the table of groups.
type Column struct {
	Name string
	// Title is its heading, and Width how many characters its cells have at most.
	Title string
	Width int
	// Least is the smallest value that the full height of a trend stands for.
	Least float64
	Help  string
	// From are the metrics that it shows.
	From []string

	of func(s *State, group string) Cell
}

// Cell is what stands in a column for a group.
type Cell struct {
	Text  string  // "-" where nothing is known
	Value float64 // what rows are sorted by
	Known bool
}

// Cell gives the column's cell of a group.
func (c *Column) Cell(s *State, group string) Cell { return c.of(s, group) }

const (
	cpuTime      = "bulkhead_group_cpu_seconds_total"
	cpuPeriods   = "bulkhead_group_cpu_periods_total"
	cpuThrottled = "bulkhead_group_cpu_throttled_periods_total"
	cpuHeld      = "bulkhead_group_cpu_throttled_seconds_total"
	pressure     = "bulkhead_group_pressure_seconds_total"
	reclaimTime  = "bulkhead_group_reclaim_seconds_total"
	charged      = "bulkhead_group_memory_charged_bytes"
	limitHits    = "bulkhead_group_memory_limit_hits_total"
	highHits     = "bulkhead_group_memory_high_hits_total"
	oomKills     = "bulkhead_group_memory_oom_kills_total"
	ioBytes      = "bulkhead_group_io_bytes_total"
	ioOps        = "bulkhead_group_io_operations_total"
	netBytes     = "bulkhead_group_network_bytes_total"
	netDropped   = "bulkhead_group_network_dropped_total"
	threads      = "bulkhead_group_threads"
	taskStates   = "bulkhead_group_tasks"
	forksRefused = "bulkhead_group_forks_refused_total"
	load         = "bulkhead_group_load1"
	limitAsked   = "bulkhead_group_limit"
	limitHeld    = "bulkhead_group_limit_held"
	notInForce   = "bulkhead_group_limits_not_in_force"
	workDone     = "bulkhead_group_work_total"
	sloSlack     = "bulkhead_group_slo_slack"
	sloTarget    = "bulkhead_group_slo_target"
	sloValue     = "bulkhead_group_slo_value"
	sloHeld      = "bulkhead_group_slo_held"
	sloHeldEnd   = "bulkhead_group_slo_held_end_seconds"
	hostCPUs     = "bulkhead_host_cpus"
	hostCPU      = "bulkhead_host_cpu_seconds_total"
	hostLoad     = "bulkhead_host_load1"
	hostPressure = "bulkhead_host_pressure_seconds_total"
	hostMemory   = "bulkhead_host_memory_bytes"
	diskBusy     = "bulkhead_host_disk_busy_seconds_total"
	datasetBytes = "bulkhead_host_zfs_dataset_bytes"
)

// Columns are all columns, the most important first: those that do not fit are left out.
var Columns = []Column{
	{Name: "cpu", Title: "CPU", Width: 5, Least: 0.05, Help: "cores in use", From: []string{cpuTime},
		of: rated(cpuTime, cores)},
	{Name: "wait", Title: "WAIT", Width: 6, Least: 1, From: []string{pressure, reclaimTime},
		Help: "time in which a task waited: for CPU (c), memory (m) or disks (d)", of: waits},
	{Name: "held", Title: "HELD", Width: 5, Least: 1, From: []string{cpuThrottled, cpuPeriods},
		Help: "periods in which the CPU limit held it back", of: held},
	{Name: "memory", Title: "MEMORY", Width: 6, Least: 1 << 20, Help: "memory charged to it, page cache too",
		From: []string{charged}, of: valued(charged, size)},
	{Name: "read", Title: "READ", Width: 6, Least: 1 << 20, Help: "bytes read from disks in a second",
		From: []string{ioBytes}, of: summed(ioBytes, 1, "read")},
	{Name: "write", Title: "WRITE", Width: 6, Least: 1 << 20, Help: "bytes written to disks in a second",
		From: []string{ioBytes}, of: summed(ioBytes, 1, "write")},
	{Name: "net", Title: "NET", Width: 6, Least: 1 << 20, Help: "bytes sent and received in a second",
		From: []string{netBytes}, of: rated(netBytes, size)},
	{Name: "tasks", Title: "TASKS", Width: 5, Help: "threads", From: []string{threads}, of: valued(threads, count)},
	{Name: "limits", Title: "LIMITS", Width: 6, From: []string{notInForce},
		Help: "limits that are not in force as asked", of: limits},
	{Name: "ops", Title: "IO/S", Width: 6, Help: "requests to disks in a second", From: []string{ioOps},
		of: rated(ioOps, count)},
	{Name: "used", Title: "OF MAX", Width: 6, Least: 1, Help: "memory charged, as a part of memory.max",
		From: []string{charged, limitHeld}, of: ofMax},
	{Name: "run", Title: "RUN", Width: 4, Help: "threads that run or could", From: []string{taskStates},
		of: labelled(taskStates, "runnable")},
	{Name: "blocked", Title: "BLKD", Width: 4, Help: "threads that wait uninterruptibly, mostly for a disk",
		From: []string{taskStates}, of: labelled(taskStates, "blocked")},
	{Name: "load", Title: "LOAD", Width: 5, Help: "load average over one minute", From: []string{load},
		of: valued(load, cores)},
	{Name: "work", Title: "WORK", Width: 6, Least: 1, From: []string{workDone},
		Help: "what its database did in a second, by its own counter", of: rated(workDone, count)},
	{Name: "slack", Title: "SLACK", Width: 6, Least: 1, From: []string{sloSlack},
		Help: "how far its database is from what it is promised; below 0 that is missed",
		of:   valued(sloSlack, percent)},
}

// unknown stands where nothing is known.
var unknown = Cell{Text: "-", Value: math.Inf(-1)}

func known(v float64, text string) Cell { return Cell{Text: text, Value: v, Known: true} }

// rated is a column of the rate of a metric, over all its labels.
func rated(metric string, text func(float64) string) func(*State, string) Cell {
	return func(s *State, group string) Cell {
		if v, ok := s.sum(metric, group, true); ok {
			return known(v, text(v))
		}
		return unknown
	}
}

// valued is a column of the values of a metric.
func valued(metric string, text func(float64) string) func(*State, string) Cell {
	return func(s *State, group string) Cell {
		if v, ok := s.sum(metric, group, false); ok {
			return known(v, text(v))
		}
		return unknown
	}
}

// labelled is a column of the value with one label.
func labelled(metric, label string) func(*State, string) Cell {
	return func(s *State, group string) Cell {
		if v, ok := s.sum(metric, group, false, label); ok {
			return known(v, count(v))
		}
		return unknown
	}
}

// summed is a column of a rate in bytes over all figures whose label at a place is this.
func summed(metric string, place int, label string) func(*State, string) Cell {
	return func(s *State, group string) Cell {
		sum, ok := 0.0, false
		for _, f := range s.Figures(metric, group) {
			if f.Rated && f.Labels[place] == label {
				sum, ok = sum+f.Rate, true
			}
		}
		if !ok {
			return unknown
		}
		return known(sum, size(sum))
	}
}

// waits is what a group waits for most.
// waited is the part of the time in which a task of a group waited for a resource, by PSI. Of memory it is that in
// which one was in reclaim, as BPF programs counted it, where the kernel has no PSI of the group.
func (s *State) waited(group, resource string) (part float64, known bool) {
	if part, known = s.sum(pressure, group, true, resource, "some"); known || resource != "memory" {
		return part, known
	}
	return s.sum(reclaimTime, group, true)
}

func waits(s *State, group string) Cell {
	most, what := -1.0, ""
	for _, r := range []struct{ resource, letter string }{{"cpu", "c"}, {"memory", "m"}, {"io", "d"}} {
		if v, ok := s.waited(group, r.resource); ok && v > most {
			most, what = v, r.letter
		}
	}
	_, psi := s.sum(pressure, group, true)
	switch {
	case most < 0, most < waitsFrom && !psi: // it may wait for others than memory
		return unknown
	case most < 0.0005:
		return known(0, "0%")
	}
	return known(most, percent(most)+what)
}

func held(s *State, group string) Cell {
	part, ok := s.throttled(group)
	if !ok {
		return unknown
	}
	return known(part, percent(part))
}

// throttled is the part of the periods in which a CPU limit held a group back.
func (s *State) throttled(group string) (part float64, known bool) {
	periods, ok := s.sum(cpuPeriods, group, true)
	held, there := s.sum(cpuThrottled, group, true)
	switch {
	case !ok || !there:
		return 0, false
	case periods <= 0:
		return 0, true
	}
	return min(held/periods, 1), true
}

func limits(s *State, group string) Cell {
	v, ok := s.sum(notInForce, group, false)
	switch {
	case !ok:
		return unknown
	case v == 0:
		return known(0, "ok")
	}
	return known(v, count(v)+" not")
}

// From which part of the time on waiting, or being held back, is an alarm.
const muchOfTime = 0.1

// alarm says whether somebody should look at a group.
func (s *State) alarm(group string) bool {
	held, _ := s.throttled(group)
	off, _ := s.sum(notInForce, group, false)
	killed, _ := s.sum(oomKills, group, true)
	return waits(s, group).Value >= muchOfTime || held >= muchOfTime || off > 0 || killed > 0
}

func ofMax(s *State, group string) Cell {
	used, ok := s.sum(charged, group, false)
	most, limited := s.sum(limitHeld, group, false, "memory.max")
	if !ok || !limited || most <= 0 {
		return unknown
	}
	return known(used/most, percent(used/most))
}

// cores is a number of CPUs, in five characters.
func cores(v float64) string {
	switch {
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 99.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// percent is a part of one, in five characters.
func percent(part float64) string {
	v := 100 * part
	if v >= 9.95 {
		return strconv.FormatFloat(v, 'f', 0, 64) + "%"
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + "%"
}

// size is a number of bytes, in six characters: 1.2G is 1.2 GiB.
func size(v float64) string {
	for _, u := range []struct {
		letter string
		bytes  float64
	}{{"T", 1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}} {
		if v >= 0.9995*u.bytes {
			digits := 1
			if v >= 99.95*u.bytes {
				digits = 0
			}
			return strconv.FormatFloat(v/u.bytes, 'f', digits, 64) + u.letter
		}
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// count is a number, in six characters.
func count(v float64) string {
	switch {
	case v >= 999_950:
		return fmt.Sprintf("%.1fM", v/1e6)
	case v >= 99_950:
		return fmt.Sprintf("%.0fk", v/1e3)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}
