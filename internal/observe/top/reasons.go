package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/policy"
)

// waitsFrom is the part of the time from which on waiting is worth a word.
const waitsFrom = 0.01

// most is how many other groups are named.
const most = 3

// waitable are what tasks wait for, by the kernel's names and ours.
var waitable = []struct{ resource, name string }{{"cpu", "CPU"}, {"memory", "memory"}, {"io", "disks"}}

// What a Reason is about.
const (
	Waits = "waits" // what the group waits for
	Holds = "holds" // what holds it back
	Wants = "wants" // who else uses the same
)

// Reason is one line for people.
type Reason struct {
	About string `json:"about"`
	Text  string `json:"text"`
}

// Why gives the lines of Reasons.
func (s *State) Why(group string) (lines []string) {
	for _, r := range s.Reasons(group) {
		lines = append(lines, r.Text)
	}
	return lines
}

// Reasons says why a group waits, in lines for people: what it waits for, which limit of its own or of a group above
// it holds it, and who else uses the same. Who is named has used it at the same time; that it is to blame is not said.
func (s *State) Reasons(group string) (all []Reason) {
	about := Waits
	say := func(format string, args ...any) { all = append(all, Reason{about, fmt.Sprintf(format, args...)}) }
	s.shares(group, say)
	s.promise(group, say)
	about = Holds
	holders := s.Holders(group)
	for _, h := range holders {
		if h.Group == group {
			say("Its own limit %s (%s, of which it uses %s): %s.", h.Name(), h.Held, h.Used, h.How)
		} else {
			say("The limit %s of %s above it (%s, of which that uses %s): %s.", h.Name(), h.Group, h.Held, h.Used,
				h.How)
		}
	}
	reasons := len(holders)
	h := s.Host()
	s.datasets(group, say)
	about = Wants
	if s.waitsFor(group, "cpu") {
		reasons++
		text := fmt.Sprintf("CPUs: the host is %s busy", h.Busy.Text)
		if users := s.users(group, cpuTime, cores); users != "" {
			say("%s. Cores in use: %s.", text, users)
		} else {
			say("%s, and no other group uses much.", text)
		}
	}
	if s.waitsFor(group, "io") {
		reasons++
		s.disks(group, say)
	}
	about = Holds
	if s.waitsFor(group, "memory") {
		reasons++
		say("Memory: the kernel has to take pages back; the host uses %s of %s.", h.Used.Text, h.Memory.Text)
	}
	if killed, ok := s.sum(oomKills, group, true); ok && killed > 0 {
		reasons++
		say("The kernel killed processes of it for want of memory.")
	}
	if text := s.NotInForce(group); text != "" {
		reasons++
		say("%s", text)
	}
	if reasons == 0 {
		say("Nothing that is counted holds it back now.")
	}
	return all
}

// waitsFor says whether a group waits for a resource; where that is not known, whether the host does.
func (s *State) waitsFor(group, resource string) bool {
	part, known := s.waited(group, resource)
	if !known {
		part, _ = s.sum(hostPressure, "", true, resource, "some")
	}
	return part >= waitsFrom
}

// shares says for how much of the time it waits for what.
func (s *State) shares(group string, say func(string, ...any)) {
	texts := func(metric, group string) string {
		var all []string
		for _, r := range waitable {
			some, known := s.sum(metric, group, true, r.resource, "some")
			if !known {
				continue
			}
			text := r.name + " " + percent(some)
			if full, ok := s.sum(metric, group, true, r.resource, "full"); ok && full >= 0.0005 {
				text += fmt.Sprintf(" (all tasks at once %s)", percent(full))
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	if of := texts(pressure, group); of != "" {
		say("A task of it waits for: %s of the time.", of)
		return
	}
	text := "How long its tasks wait is not known: no PSI of this group."
	if part, known := s.waited(group, "memory"); known {
		text = "A task of it waits for: memory " + percent(part) + " of the time, as BPF programs count it. How long " +
			"for CPUs and disks is not known: no PSI of this group."
	}
	if of := texts(hostPressure, ""); of != "" {
		text += " Of the whole host a task waits for: " + of + " of the time."
	}
	say("%s", text)
}

// promise says how it goes with what its database is promised.
func (s *State) promise(group string, say func(string, ...any)) {
	for _, target := range s.Figures(sloTarget, group) {
		of := &api.SLO{Signal: target.Labels[0]}
		text := fmt.Sprintf("It is promised %s %s, ", of.Signal, of.Amount(target.Value))
		value, known := s.sum(sloValue, group, false)
		slack, _ := s.sum(sloSlack, group, false)
		switch {
		case !known:
			text += "and what it has is not known"
		case slack < 0:
			text += "and misses that: " + of.Amount(value)
		default:
			text += "and has " + of.Amount(value)
		}
		if held, _ := s.sum(sloHeld, group, false); held > 0 {
			text += fmt.Sprintf("; %s of other groups lowered for it", policy.Counted(int(held), "limit"))
			if end, told := s.sum(sloHeldEnd, group, false); told {
				text += ", the last of them ends about " + api.Moment(time.Unix(int64(end), 0), s.At)
			}
		}
		say("%s. `bulkhead status` says what was done.", text)
	}
}

// datasets says what file systems of OpenZFS its database has.
func (s *State) datasets(group string, say func(string, ...any)) {
	held := map[string]map[string]float64{}
	var names []string
	for _, f := range s.Figures(datasetBytes, "") {
		name := f.Labels[0]
		if f.Labels[1] != group {
			continue
		}
		if held[name] == nil {
			held[name], names = map[string]float64{}, append(names, name)
		}
		held[name][f.Labels[2]] = f.Value
	}
	for _, name := range names {
		of := held[name]
		say("ZFS: %s.", api.DatasetText(name, of["logical"], of["physical"], of["snapshots"]))
	}
}

// disks says what it does on each disk, and who else does.
func (s *State) disks(group string, say func(string, ...any)) {
	seen := map[string]bool{}
	for _, f := range s.Figures(ioBytes, group) {
		device := f.Labels[0]
		if seen[device] {
			continue
		}
		seen[device] = true
		read, _ := s.sum(ioBytes, group, true, device, "read")
		written, _ := s.sum(ioBytes, group, true, device, "write")
		if read+written == 0 {
			continue
		}
		text := fmt.Sprintf("Disk %s: it reads %s/s and writes %s/s.", device, size(read), size(written))
		if busy, ok := s.sum(diskBusy, "", true, device); ok {
			text += fmt.Sprintf(" The disk is busy for %s of the time.", percent(min(busy, 1)))
		}
		if users := s.users(group, ioBytes, size, device); users != "" {
			text += " Bytes a second: " + users + "."
		}
		say("%s", text)
	}
}

// users names the groups that use most of something beside one, those below it apart. What groups below another use is
// theirs alone, though the figures of that one have it.
func (s *State) users(group, metric string, text func(float64) string, labels ...string) string {
	type user struct {
		name string
		rate float64
	}
	own := map[string]float64{}
	groups := s.Groups()
	for _, g := range groups {
		if rate, ok := s.sum(metric, g.Name, true, labels...); ok {
			own[g.Name] += rate
			if above := parentOf(g.Name, groups); above != "" {
				own[above] -= rate
			}
		}
	}
	var below, others []user
	for _, g := range groups {
		u := user{g.Name, own[g.Name]}
		name, is := strings.CutPrefix(g.Name, group+"/")
		switch {
		case g.Name == group || u.rate <= 0 || text(u.rate) == text(0):
		case is:
			below = append(below, user{name, u.rate})
		default:
			others = append(others, u)
		}
	}
	list := func(head string, users []user) string {
		slices.SortFunc(users, func(a, b user) int {
			return cmp.Or(cmp.Compare(b.rate, a.rate), strings.Compare(a.name, b.name))
		})
		var texts []string
		for _, u := range users[:min(most, len(users))] {
			texts = append(texts, u.name+" "+text(u.rate))
		}
		if texts == nil {
			return ""
		}
		return head + strings.Join(texts, ", ")
	}
	inIt, beside := list("below it ", below), list("others ", others)
	if inIt != "" && beside != "" {
		inIt += "; "
	}
	return inIt + beside
}

// NotInForce says that limits of a group are not in force as asked; "" when all are.
func (s *State) NotInForce(group string) string {
	n, _ := s.sum(notInForce, group, false)
	switch {
	case n == 0:
		return ""
	case n == 1:
		return "A limit of it is not in force as asked: `bulkhead status " + group + "` says which, and why."
	}
	return count(n) + " limits of it are not in force as asked: `bulkhead status " + group + "` says which, and why."
}
