package netshape

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"bulkhead/internal/linux/tc"
)

// Class is one HTB class as it shall be.
type Class struct {
	ID, Parent tc.Handle
	Group      string // "" for the link itself and for the traffic of no group
	Rate, Ceil tc.Rate
	// Burst and Cburst are how many bytes may pass at once at Rate and at Ceil; Quantum is how many a class sends in
	// its turn when classes share what is left. All in bytes.
	Burst, Cburst, Quantum uint32
	Inner                  bool // has classes below it and no queue of its own
}

const (
	// floorRate is what a class without a guarantee gets in any case: HTB knows no rate of 0.
	floorRate = 64 * tc.Kbit
	// burstTime is how long a class may send at full speed after a pause. It covers a late timer: HTB forgets what was
	// not sent within it, and the default of one frame loses most of a fast rate (and is 0 above 13 Gbit/s).
	burstTimeMs = 10
	// quantumTime is a class's turn when it shares. A turn shorter than one large packet (64 KiB with offload) makes
	// HTB share by packets and not by bytes.
	quantumTimeMs = 5
	maxQuantum    = 1 << 24
)

// burst is the bytes of burstTimeMs and one frame.
func burst(r tc.Rate) uint32 {
	return uint32(min(r.BytesPerSecond()*burstTimeMs/1000+tc.Frame, math.MaxUint32))
}

func quantum(r tc.Rate) uint32 {
	return uint32(min(max(r.BytesPerSecond()*quantumTimeMs/1000, tc.Frame), maxQuantum))
}

// Problem is one thing that cannot be asked for.
type Problem struct {
	Device string
	Group  string // "" when it is about the interface
	Text   string
	Hint   string
}

// Error gives `limit egress of "db" on eth0: …`.
func (p *Problem) Error() string {
	text := "shape " + p.Device
	if p.Group != "" {
		text += fmt.Sprintf(" for group %q", p.Group)
	}
	text += ": " + p.Text
	if p.Hint != "" {
		text += "; hint: " + p.Hint
	}
	return text
}

// tree builds the classes of one direction.
type tree struct {
	w        Wanted
	d        Direction
	groups   map[string]Group
	children map[string][]Group // by name of the parent that has a class, "" for the top
	problems []error
	classes  []Class
}

// Classes computes the classes of one direction, parents first. A group without a share in this direction has none: its
// traffic counts as that of the nearest group above it. All problems are told at once.
func Classes(w Wanted, d Direction) ([]Class, error) {
	t := &tree{w: w, d: d, groups: make(map[string]Group), children: make(map[string][]Group)}
	for _, g := range w.Groups {
		if _, twice := t.groups[g.Name]; twice {
			t.problem(g.Name, "is there twice", "")
		}
		t.groups[g.Name] = g
	}
	t.link()
	if len(t.problems) == 0 {
		t.top()
	}
	return t.classes, errors.Join(t.problems...)
}

func (t *tree) problem(group, text, hint string) {
	t.problems = append(t.problems, &Problem{Device: t.w.Device, Group: group, Text: t.d.String() + " " + text,
		Hint: hint})
}

// link finds everybody's parent and checks what each asks for by itself.
func (t *tree) link() {
	used := make(map[Slot]string)
	for _, g := range t.w.Groups {
		s := g.share(t.d)
		if t.d == Ingress && g.policed() {
			t.checkPoliced(g)
		}
		if !g.classed(t.d) {
			continue
		}
		if other, taken := used[g.Slot]; taken || g.Slot < 1 || g.Slot > maxSlot {
			t.problem(g.Name, fmt.Sprintf("has no number of its own (%d, other group: %q)", g.Slot, other), "")
		}
		used[g.Slot] = g.Name
		t.check(g, s)
		parent, depth := g.Parent, 0
		for parent != "" && !t.groups[parent].classed(t.d) {
			parent = t.groups[parent].Parent
			if depth++; depth > len(t.w.Groups) {
				t.problem(g.Name, "has itself above it", "")
				return
			}
		}
		t.children[parent] = append(t.children[parent], g)
	}
	for _, c := range t.children {
		slices.SortFunc(c, func(a, b Group) int { return cmp.Compare(a.Slot, b.Slot) })
	}
}

// checkPoliced checks what a program is to hold: it can drop, and cannot keep anything free.
func (t *tree) checkPoliced(g Group) {
	const ports = "name the ports that the group listens on"
	switch {
	case g.Slot < 1 || g.Slot > maxSlot:
		t.problem(g.Name, fmt.Sprintf("has no number of its own (%d)", g.Slot), "")
	case g.Ingress.Min != 0:
		t.problem(g.Name, "min needs a class, and without ports nothing that arrives can be sorted into one", ports)
	case g.Ingress.Max < floorRate:
		t.problem(g.Name, fmt.Sprintf("max %s is too little to answer a connection", g.Ingress.Max),
			fmt.Sprintf("%s is the least", floorRate))
	}
}

func (t *tree) check(g Group, s Share) {
	link := t.w.LinkRate
	switch {
	case s.Max != 0 && s.Max < floorRate:
		t.problem(g.Name, fmt.Sprintf("max %s is too little to answer a connection", s.Max),
			fmt.Sprintf("%s is the least", floorRate))
	case s.Max != 0 && s.Min > s.Max:
		t.problem(g.Name, fmt.Sprintf("min %s is above its max %s", s.Min, s.Max), "")
	case link != 0 && s.Max > link:
		t.problem(g.Name, fmt.Sprintf("max %s is above the link's %s", s.Max, link), "leave max out for the whole link")
	case link != 0 && s.Min > link:
		t.problem(g.Name, fmt.Sprintf("min %s is above the link's %s", s.Min, link), "")
	}
	if t.d == Ingress && len(g.Ports) == 0 {
		t.problem(g.Name, "is sorted by the ports that the group listens on or by its cgroup2 directory, and neither "+
			"is known", "")
	}
	if t.d == Egress && g.Cgroup == "" && !g.NetCls && len(g.Ports) == 0 {
		t.problem(g.Name, "can be sorted neither by a cgroup2 directory nor by net_cls nor by ports",
			"name the ports that the group listens on, or mount net_cls: `discover` says how")
	}
}

// floor is what must be kept free for a group: its guarantee, or its children's if they are more.
func (t *tree) floor(g Group) tc.Rate { return max(g.share(t.d).Min, t.sum(g.Name)) }

func (t *tree) sum(parent string) tc.Rate {
	var sum tc.Rate
	for _, c := range t.children[parent] {
		sum += t.floor(c)
	}
	return sum
}

// top makes the classes below the qdisc. Guarantees need a class for the link, from which all borrow, and one for the
// traffic of no group: HTB serves what it has no class for before everything else. Without guarantees that is just what
// is wanted of it.
func (t *tree) top() {
	if len(t.children[""]) == 0 {
		return
	}
	sum := t.sum("")
	guaranteed := slices.ContainsFunc(t.children[""],
		func(g Group) bool { return g.share(t.d).Min != 0 || g.share(t.d).Max == 0 })
	link := t.w.LinkRate
	reserve := min(t.w.Reserve, link)
	if !guaranteed && reserve == 0 {
		for _, g := range t.children[""] {
			t.add(g, tc.MakeHandle(rootMajor, 0), g.share(t.d).Max, g.share(t.d).Max)
		}
		return
	}
	if link == 0 {
		i := slices.IndexFunc(t.children[""],
			func(g Group) bool { return g.share(t.d).Min != 0 || g.share(t.d).Max == 0 })
		t.problem(t.children[""][i].Name, "has a guarantee, and nobody knows what the link carries",
			"say the link's rate, or put the group into one that has a max")
		return
	}
	if sum+reserve > link || reserve == link {
		t.problem("", fmt.Sprintf("guarantees add up to %s, the link carries %s, of which %s are kept for others", sum,
			link, reserve), "")
		return
	}
	if t.d == Ingress { // what belongs to no group does not come through here
		link -= reserve
	}
	root := tc.MakeHandle(rootMajor, linkMinor)
	t.class(Class{ID: root, Parent: tc.MakeHandle(rootMajor, 0), Rate: link, Ceil: link, Inner: true})
	t.class(Class{ID: tc.MakeHandle(rootMajor, restMinor), Parent: root,
		Rate: max(link-sum, link/100, reserve, floorRate), Ceil: link})
	for _, g := range t.children[""] {
		t.add(g, root, t.floor(g), link)
	}
}

// add makes the class of a group below parent, and those of its children.
func (t *tree) add(g Group, parent tc.Handle, rate, ceil tc.Rate) {
	if limit := g.share(t.d).Max; limit != 0 {
		ceil = min(ceil, limit)
	}
	children := t.children[g.Name]
	sum := t.sum(g.Name)
	if sum > ceil {
		t.problem(g.Name, fmt.Sprintf("has %s, its children's guarantees add up to %s", ceil, sum), "")
		return
	}
	rate = min(max(rate, floorRate), ceil)
	if len(children) == 0 {
		t.class(Class{ID: g.Slot.Class(), Parent: parent, Group: g.Name, Rate: rate, Ceil: ceil})
		return
	}
	t.class(Class{ID: g.Slot.inner(), Parent: parent, Group: g.Name, Rate: rate, Ceil: ceil, Inner: true})
	// What the group's guarantee leaves beside its children's belongs to its own processes.
	t.class(Class{ID: g.Slot.Class(), Parent: g.Slot.inner(), Group: g.Name,
		Rate: min(max(rate-min(sum, rate), floorRate), ceil), Ceil: ceil})
	for _, c := range children {
		t.add(c, g.Slot.inner(), t.floor(c), ceil)
	}
}

// maxDepth is TC_HTB_MAXDEPTH less one for the leaf.
const maxDepth = 7

func (t *tree) class(c Class) {
	depth := 0
	for at := c.Parent; ; depth++ {
		i := slices.IndexFunc(t.classes, func(p Class) bool { return p.ID == at })
		if i < 0 {
			break
		}
		at = t.classes[i].Parent
	}
	if depth > maxDepth {
		t.problem(c.Group, fmt.Sprintf("is nested deeper than the kernel's %d classes", maxDepth+1), "")
		return
	}
	c.Burst, c.Cburst, c.Quantum = burst(c.Rate), burst(c.Ceil), quantum(c.Rate)
	t.classes = append(t.classes, c)
}

// htb is the class as the kernel takes it.
func (c Class) htb() tc.HTBClass {
	return tc.HTBClass{Rate: c.Rate, Ceil: c.Ceil, Burst: c.Burst, Cburst: c.Cburst, Quantum: c.Quantum}
}
