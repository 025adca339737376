package control

import (
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/plan"
)

// TaskSampler counts, again and again, how many tasks of each group want to run or wait in D state: the
// terms of a load average. A group whose CPU time stands still and that had none the last time is taken to
// have none now, so that idle groups cost one read each.
type TaskSampler struct {
	c    *Controller
	used map[cgroup.Dir]string
	last map[cgroup.Dir]TaskStates
}

// NewTaskSampler makes a sampler. It is for the goroutine that calls Look, whose groups it counts.
func (c *Controller) NewTaskSampler() *TaskSampler {
	return &TaskSampler{c: c, used: map[cgroup.Dir]string{}, last: map[cgroup.Dir]TaskStates{}}
}

// Sample counts the tasks of each group of the last look, those of its children with them.
func (s *TaskSampler) Sample() map[string]TaskStates {
	v := s.c.memory.view
	if v == nil {
		return nil
	}
	used, last := map[cgroup.Dir]string{}, map[cgroup.Dir]TaskStates{}
	counts := map[string]TaskStates{}
	for _, g := range v.Classified.Groups {
		d, file := accounting(v, g.Path)
		if d.Path == "" {
			continue
		}
		for _, d := range append(runsOf(v, g.Path, d.Hierarchy), d) {
			text, err := v.Tree.Read(cgroup.File{Dir: d, Name: file})
			if err != nil {
				continue // gone since the look
			}
			used[d] = text
			if before, known := s.used[d]; !known || before != text || s.last[d].Running+s.last[d].Blocked > 0 {
				last[d] = s.count(v, d)
			}
			for at := g.Path; at != "."; at = path.Dir(at) {
				sum := counts[at]
				sum.add(last[d])
				counts[at] = sum
			}
		}
	}
	s.used, s.last = used, last
	return counts
}

// runsOf lists the directories of a group's commands of `run`, which systemd keeps beside that of its other processes.
func runsOf(v *View, group, hierarchy string) []cgroup.Dir {
	own, there := v.Layout.Own(group)[hierarchy]
	if v.Systemd == nil || !there {
		return nil
	}
	names, err := v.Tree.Children(own)
	if err != nil {
		return nil
	}
	var dirs []cgroup.Dir
	for _, name := range names {
		if d := own.Child(name); plan.RunDir(v.Policy.Host.Root, d.Path) == d.Path {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// accounting is the directory of a group's own processes that counts their CPU time, and the file.
func accounting(v *View, group string) (d cgroup.Dir, file string) {
	for hierarchy, d := range v.Layout.Member(group) {
		h, _ := v.Facts.Hierarchy(hierarchy)
		switch {
		case h.Version == 1 && h.Has("cpuacct"):
			return d, "cpuacct.usage"
		case h.Version == 2 && h.Has("cpu"):
			return d, "cpu.stat"
		}
	}
	return cgroup.Dir{}, ""
}

// count looks at each thread of a directory.
func (s *TaskSampler) count(v *View, d cgroup.Dir) TaskStates {
	tids, err := v.Tree.Tasks(d)
	if err != nil {
		return TaskStates{}
	}
	var t TaskStates
	for _, tid := range tids {
		if state, err := s.c.Host.Proc.TaskState(tid); err == nil {
			t.count(state)
		}
	}
	return t
}

func (t *TaskStates) add(o TaskStates) {
	t.Total += o.Total
	t.Running += o.Running
	t.Blocked += o.Blocked
}

// count counts one thread by its state, field 3 of its stat (proc(5)).
func (t *TaskStates) count(state byte) {
	t.Total++
	switch state {
	case 'R':
		t.Running++
	case 'D':
		t.Blocked++
	}
}

// Load is a load average as in /proc/loadavg: tasks that run, want to run or wait in D state, damped over
// 1, 5 and 15 minutes.
type Load [3]float64

// String is the three figures, as uptime(1) prints them.
func (l Load) String() string {
	words := make([]string, len(l))
	for i, f := range l {
		words[i] = strconv.FormatFloat(f, 'f', 2, 64)
	}
	return strings.Join(words, " ")
}
