package metrics

import (
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
)

// TaskStates counts the threads of a group and what they do now.
type TaskStates struct {
	Total   int `json:"total"`
	Running int `json:"running"` // runnable: this group's part of the load
	Blocked int `json:"blocked"` // in uninterruptible sleep, D
}

// Count counts one more thread by its state, field 3 of its stat (proc(5)).
func (t *TaskStates) Count(state byte) {
	t.Total++
	switch state {
	case 'R':
		t.Running++
	case 'D':
		t.Blocked++
	}
}

func (t *TaskStates) add(o TaskStates) {
	t.Total += o.Total
	t.Running += o.Running
	t.Blocked += o.Blocked
}

// TaskSampler counts, again and again, how many tasks of each group are runnable or in uninterruptible sleep: what a
// load average is made of. A directory whose CPU time stands still, and that had no such task the last time, is taken
// to have none now: an idle group costs one read.
type TaskSampler struct {
	cpuTime map[cgroup.Dir]string // the text that told it the last time
	last    map[cgroup.Dir]TaskStates
	open    *cgroup.Kept
}

// Take counts the tasks of groups, by name, in the directories of their own processes. Those of a/b count for a too.
// state tells the state of a thread.
func (s *TaskSampler) Take(t *cgroup.Tree, groups map[string][]cgroup.Dir,
	state func(tid int) (byte, error)) map[string]TaskStates {
	cpuTime, last := map[cgroup.Dir]string{}, map[cgroup.Dir]TaskStates{}
	sums := map[string]TaskStates{}
	if s.open == nil {
		s.open = cgroup.NewKept(mostOpen)
	}
	s.open.Begin()
	for group, dirs := range groups {
		for _, d := range dirs {
			file := cpuFields[0].source(t.Version(d)).File
			texts, _, err := s.open.ReadMany(t, d, []string{file})
			text, there := texts[file]
			if err != nil || !there {
				continue // gone meanwhile
			}
			cpuTime[d] = text
			if before, known := s.cpuTime[d]; !known || before != text || s.last[d].Running+s.last[d].Blocked > 0 {
				last[d] = countTasks(t, d, state)
			}
			for at := group; at != "."; at = path.Dir(at) {
				sum := sums[at]
				sum.add(last[d])
				sums[at] = sum
			}
		}
	}
	s.cpuTime, s.last = cpuTime, last
	return sums
}

// countTasks looks at each thread of a directory.
func countTasks(t *cgroup.Tree, d cgroup.Dir, state func(tid int) (byte, error)) (states TaskStates) {
	tids, err := t.Tasks(d)
	if err != nil {
		return states
	}
	for _, tid := range tids {
		if now, err := state(tid); err == nil {
			states.Count(now)
		}
	}
	return states
}

// Load is a load average as in /proc/loadavg: tasks that are runnable or in uninterruptible sleep, damped over 1, 5 and
// 15 minutes.
type Load [3]float64

// LoadEvery is the time between two samples of load averages, as in the kernel (LOAD_FREQ).
const LoadEvery = 5 * time.Second

// String is the three figures, as uptime(1) prints them.
func (l Load) String() string {
	words := make([]string, len(l))
	for i, f := range l {
		words[i] = strconv.FormatFloat(f, 'f', 2, 64)
	}
	return strings.Join(words, " ")
}

// Loads are the load averages of groups, by name.
type Loads map[string]Load

// Next gives the averages one sample later, as calc_load of the kernel does: each moves towards the sample by
// 1-exp(-elapsed/window). Groups that are not in the sample are forgotten.
func (l Loads) Next(sample map[string]TaskStates, elapsed time.Duration) Loads {
	averages := make(Loads, len(sample))
	for group, tasks := range sample {
		load := l[group]
		for i, window := range []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute} {
			keep := math.Exp(-float64(elapsed) / float64(window))
			load[i] = load[i]*keep + float64(tasks.Running+tasks.Blocked)*(1-keep)
		}
		averages[group] = load
	}
	return averages
}
