package libcgroup

import (
	"slices"
	"strings"

	"bulkhead/internal/policy"
)

const (
	// mostExceptions bounds what is taken out of one match. Only a file of very many rules that overlap reaches it.
	mostExceptions = 64
	// mostCompared bounds how many rules above one are compared with it, so that the work grows with the file.
	mostCompared = 256
)

// placed is a rule that has been read.
type placed struct {
	match policy.Match
	group string // "" when it takes processes out
	order int
}

// above are the rules above one, by what they ask: only those that a policy would not put first by itself are looked
// at.
type above struct {
	count   int
	ignored []*placed            // take processes out, however specific
	all     *placed              // the first for every process
	groups  map[string][]*placed // without a program, by @group; "" has all of them
	users   map[string][]*placed // without a program, by user; "" has all of them
	// Those with a program: by its base name and the user ("" for none), and those with the beginning of a path and all
	// others, by the user.
	programs     map[programOf][]*placed
	begins, ends map[string][]*placed
}

// programOf is a program by its base name, of a user.
type programOf struct{ name, user string }

// remember adds a rule below those that are there.
func (a *above) remember(e *placed) {
	if a.groups == nil {
		a.groups, a.users, a.programs = map[string][]*placed{}, map[string][]*placed{}, map[programOf][]*placed{}
		a.begins, a.ends = map[string][]*placed{}, map[string][]*placed{}
	}
	a.count++
	e.order = a.count
	add := func(to map[string][]*placed, keys ...string) {
		for _, key := range keys {
			to[key] = append(to[key], e)
		}
	}
	m := e.match
	switch {
	case e.group == "":
		a.ignored = append(a.ignored, e)
	case isEmpty(m):
		if a.all == nil {
			a.all = e
		}
	case strings.HasSuffix(m.Program, "*"):
		add(a.begins, m.User)
	case m.Program != "":
		of := programOf{programName(m.Program), m.User}
		a.programs[of] = append(a.programs[of], e)
		add(a.ends, m.User)
	case m.User != "":
		add(a.users, m.User, "")
	default:
		add(a.groups, m.UnixGroup, "")
	}
}

// overlapping gives, in their order, the rules above that may take a process of this one and that a policy would not
// put first: they are no more specific, or take processes out. whole is false when there were too many to look at.
func (a *above) overlapping(e *placed) (found []*placed, whole bool) {
	whole = true
	m := e.match
	look := func(all []*placed) {
		if len(all) > mostCompared {
			all, whole = all[:mostCompared], false
		}
		for _, b := range all {
			if (b.group == "" || specific(b.match) <= specific(m)) && overlap(b.match, m) {
				found = append(found, b)
			}
		}
	}
	look(a.ignored)
	if a.all != nil {
		found = append(found, a.all)
	}
	if !isEmpty(m) {
		look(a.groups[""])
		if m.User != "" || m.Program != "" {
			look(a.users[m.User])
		}
	}
	users := []string{""} // those of other users are of other processes, or the more specific ones
	if m.User != "" {
		users = append(users, m.User)
	}
	for _, name := range users {
		switch {
		case strings.HasSuffix(m.Program, "*"):
			look(a.begins[name])
			look(a.ends[name]) // a base name may be that of any path
		case m.Program != "":
			look(a.begins[name])
			look(a.programs[programOf{programName(m.Program), name}])
		}
	}
	slices.SortFunc(found, func(a, b *placed) int { return a.order - b.order })
	return found, whole
}

// overlap says whether a process may be meant by both of two rules.
func overlap(a, b policy.Match) bool {
	return (a.User == "" || b.User == "" || a.User == b.User) && sharesProgram(a.Program, b.Program)
}

// sharesProgram says whether two programs of rules may be one.
func sharesProgram(a, b string) bool {
	prefixA, isA := strings.CutSuffix(a, "*")
	prefixB, isB := strings.CutSuffix(b, "*")
	whole := func(s string) bool { return strings.HasPrefix(s, "/") }
	switch {
	case a == "" || b == "":
		return true
	case isA && isB:
		return strings.HasPrefix(prefixA, prefixB) || strings.HasPrefix(prefixB, prefixA)
	case isA:
		return !whole(b) || strings.HasPrefix(b, prefixA)
	case isB:
		return !whole(a) || strings.HasPrefix(a, prefixB)
	case whole(a) && whole(b):
		return a == b
	}
	return programName(a) == programName(b)
}

// specific ranks a match as a policy does: a program goes before a user, that before a Unix group.
func specific(m policy.Match) (rank int) {
	if m.Program != "" {
		rank += 4
	}
	if m.User != "" {
		rank += 2
	}
	if m.UnixGroup != "" {
		rank++
	}
	return rank
}

// isEmpty says whether a rule is for every process.
func isEmpty(m policy.Match) bool { return m.User == "" && m.UnixGroup == "" && m.Program == "" }

// covers says whether a match takes every process that another one takes.
func covers(a, b policy.Match) bool {
	return a.Cgroup == "" && (a.User == "" || a.User == b.User) && (a.UnixGroup == "" || a.UnixGroup == b.UnixGroup) &&
		coversProgram(a.Program, b.Program)
}

// coversProgram says whether every process of one program is one of another.
func coversProgram(a, b string) bool {
	begin, wild := strings.CutSuffix(a, "*")
	return a == "" || a == b || wild && strings.HasPrefix(b, begin) || b != "" && !wild && !strings.HasPrefix(a, "/") &&
		!strings.HasSuffix(b, "*") && programName(b) == a
}
