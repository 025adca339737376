package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// onLink gives a group limits on an interface.
func onLink(path string, pairs ...any) classify.Group {
	var ss policy.Settings
	for i := 0; i < len(pairs); i += 2 {
		ss = append(ss, policy.Setting{Key: pairs[i].(policy.Key), On: "eth0", Dev: "eth0",
			Value: pairs[i+1].(policy.BitRate), From: "group"})
	}
	return group(path, ss)
}

// shaped is a host with one interface on which there is nothing, and a kernel that has every piece but some.
func shaped(lacks ...string) *plan.Network {
	n := &plan.Network{Slots: map[string]netshape.Slot{}, Ports: map[string][]uint16{}}
	for _, piece := range []string{netshape.HasHTB, netshape.HasIFB, netshape.HasMirred, netshape.HasProgram,
		netshape.HasNetCls, "fq_codel"} {
		c := netshape.Capability{Name: piece, Verdict: netshape.Yes}
		if slices.Contains(lacks, "?") {
			c.Verdict, c.Why = netshape.Unknown, "permission denied"
		}
		if slices.Contains(lacks, piece) {
			c.Verdict, c.Why = netshape.No, "no such file or directory"
		}
		n.Has = append(n.Has, c)
	}
	n.Devices = []plan.NetDevice{{State: netshape.State{Device: tc.Device{Link: tc.Link{Name: "eth0", Index: 2,
		Up: true}}}}}
	return n
}

// told is the steps of the network, the notes and the refusals of a plan.
func told(p plan.Plan) string {
	var b strings.Builder
	for _, s := range p.Steps {
		if s.Kind == request.Kind {
			fmt.Fprintf(&b, "%s: %s\n", s.Group, s.New)
		}
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note %s %s\n", n.Group, n.Text)
	}
	for _, r := range p.Refusals {
		fmt.Fprintf(&b, "refused %s %s; %s\n", r.Group, r.Reason, r.Hint)
	}
	return b.String()
}

// How packets are told apart, and what a kernel without a piece is told.
func TestNetworkChoices(t *testing.T) {
	const mbit = policy.BitRate(1e6)
	out := func(path string) classify.Group { return onLink(path, policy.KeyNetworkEgressMax, 100*mbit) }
	in := func(path string) classify.Group { return onLink(path, policy.KeyNetworkIngressMax, 50*mbit) }
	byPorts := out("a")
	byPorts.Settings[0].Network = policy.NetworkPart{Sort: policy.SortPorts, Ports: "3306"}
	least := onLink("a", policy.KeyNetworkIngressMin, 5*mbit)
	ports := map[string][]uint16{"a": {3306}}
	unified, legacy := unifiedHost(), legacyHost()
	for _, c := range []struct {
		name  string
		v1    bool
		group classify.Group
		lacks []string
		ports map[string][]uint16
		want  []string
		never string
	}{
		{"by program", false, out("a"), nil, nil,
			[]string{"sorts \"/sys/fs/cgroup/bulkhead/a\" into class 7fff:20", "told by a program on its directory",
				"waits in fq_codel", "a: add program bcount_in"}, "refused"},
		{"by port, as asked", false, byPorts, nil, nil,
			[]string{"IPv4 TCP from port 3306 → 7fff:20", "by the ports it listens on"}, "that sorts"},
		{"shaped", false, in("a"), nil, ports,
			[]string{"add virtual NIC bhifb2", "IPv4 TCP to port 3306 → bhifb2", "shaped there"}, "polices"},
		{"policed", false, in("a"), nil, nil,
			[]string{"polices what arrives at eth0", "of many connections some starve"}, "virtual NIC bhifb2"},
		{"policed without ifb", false, in("a"), []string{netshape.HasIFB}, ports,
			[]string{"this kernel has no ifb, so what arrives is policed and not shaped", "polices what arrives"},
			"refused"},
		{"policed without mirred", false, in("a"), []string{netshape.HasMirred}, ports,
			[]string{"this kernel has no act_mirred, so what arrives is policed"}, "refused"},
		{"a guarantee without ifb", false, least, []string{netshape.HasIFB}, ports,
			[]string{"refused a network on eth0: this kernel has no ifb, which shapes what arrives", "`modprobe ifb`"},
			": add"},
		{"without htb", false, out("a"), []string{netshape.HasHTB}, nil,
			[]string{"refused a network on eth0: this kernel has no htb", "CONFIG_NET_SCH_HTB"}, ": add"},
		{"without cgroup BPF", false, out("a"), []string{netshape.HasProgram}, nil,
			[]string{"refused a network on eth0: this kernel has no cgroup program", "`ports: [3306]`"}, ": add"},
		{"without cgroup BPF, with ports", false, out("a"), []string{netshape.HasProgram}, ports,
			[]string{"by the ports it listens on"}, "refused"},
		{"untried", false, out("a"), []string{"?"}, ports,
			[]string{"refused a network on eth0: whether this kernel has htb could not be tried: permission denied",
				"docs/install.md"}, ": add"},
		{"v1 alone, without ports", true, out("a"), nil, nil,
			[]string{"refused a network on eth0: egress can be sorted neither by a cgroup2 directory"}, ": add"},
		{"v1 alone, without ports: no word on how", true, out("a"), nil, nil, nil, "what leaves is told"},
		{"v1 alone, arrival without ports: no word on how", true, in("a"), nil, nil, nil, "is policed"},
		{"v1 alone, with ports", true, out("a"), nil, ports, []string{"by the ports it listens on"}, "refused"},
		{"v1 alone, arrival without ports", true, in("a"), nil, nil,
			[]string{"refused a network on eth0: ingress is sorted by the ports"}, ": add"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := unified
			if c.v1 {
				f = legacy
			}
			i := input(f, c.group)
			i.Network = shaped(c.lacks...)
			i.Network.Ports = c.ports
			got := told(Make(i))
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("it does not say %q:\n%s", want, got)
				}
			}
			if strings.Contains(got, c.never) {
				t.Errorf("it says %q:\n%s", c.never, got)
			}
		})
	}
}

// Where programs cannot tell packets apart, net_cls does: a class id on each group's directory, which those below take
// over unless they have one of their own.
func TestNetCls(t *testing.T) {
	const mbit = policy.BitRate(1e6)
	hybrid := func(kernel string, blindedBy string) *host.Facts {
		u := v2()
		u.Mount = "/sys/fs/cgroup/unified"
		f := factsWith(v1("cpu"), v1("net_cls", "net_prio"), u)
		f.Kernel, _ = host.ParseVersion(kernel)
		f.BlindedBy = blindedBy
		return f
	}
	readOnly := hybrid("5.10", "/sys/fs/cgroup/net_cls,net_prio/docker")
	for i := range readOnly.Hierarchies {
		readOnly.Hierarchies[i].ReadOnly = readOnly.Hierarchies[i].Version == 1
	}
	ports := policy.NetworkPart{Sort: policy.SortPorts, Ports: "3306"}
	for _, c := range []struct {
		name   string
		facts  *host.Facts
		part   policy.NetworkPart
		lacks  []string
		want   string // in the words of the plan
		class  string // of the directory; "" when nobody writes it
		blinds bool
	}{
		{"v1 alone", factsWith(v1("cpu"), v1("net_cls")), policy.NetworkPart{}, nil, "told by net_cls", "2147418144",
			false},
		{"v1 alone, as asked by ports", factsWith(v1("cpu"), v1("net_cls")), ports, nil, "by the ports it listens on",
			"", false},
		{"v1 alone, no cls_cgroup", factsWith(v1("cpu"), v1("net_cls")), policy.NetworkPart{},
			[]string{netshape.HasNetCls},
			"which tells the group's sockets from others: no such file or directory; `modprobe cls_cgroup`", "", false},
		{"hybrid", hybrid("6.1", ""), policy.NetworkPart{}, nil, "told by a program on its directory", "", false},
		{"5.10", hybrid("5.10", ""), policy.NetworkPart{}, nil, "told by a program on its directory", "", false},
		{"5.10, blinded", hybrid("5.10", "/sys/fs/cgroup/net_cls,net_prio/x"), policy.NetworkPart{}, nil,
			"net_prio/x keeps this kernel (5.10) from telling", "2147418144", false},
		{"5.10, blinded where we may not write", readOnly, policy.NetworkPart{}, nil,
			"refused a network on eth0: egress can be sorted neither", "", false},
		{"4.19", hybrid("4.19", ""), policy.NetworkPart{}, []string{netshape.HasProgram}, "told by net_cls",
			"2147418144", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := onLink("a", policy.KeyNetworkEgressMax, 100*mbit)
			a.Settings[0].Network = c.part
			a.Inner = true
			below := group("a/b", nil)
			below.Parent = "a"
			i := input(c.facts, a, below, group("c", nil))
			i.Network = shaped(c.lacks...)
			p := Make(i)
			if got := told(p); !strings.Contains(got, c.want) || c.class != "" &&
				(strings.Contains(got, "/unified/") || !strings.Contains(got, "net_cls class ids")) {
				t.Errorf("it does not say %q:\n%s", c.want, got)
			}
			classes := map[string]string{}
			for _, s := range p.Steps {
				if s.File().Name != knob.FileClassID {
					continue
				}
				classes[s.Group] = s.New
				if !strings.HasPrefix(s.Reason, "network.egress.max 100Mbit/s on eth0") ||
					s.Setting != policy.KeyNetworkEgressMax || (s.Final != "") != c.blinds {
					t.Errorf("a class for %q, setting %s, final %q", s.Reason, s.Setting, s.Final)
				}
			}
			if says := strings.Contains(told(p), "address filters and accounting"); says != c.blinds {
				t.Errorf("%v that it blinds the kernel:\n%s", says, told(p))
			}
			if want := map[string]string{"a": c.class, "a/b": c.class}; c.class != "" && !maps.Equal(classes, want) ||
				c.class == "" && len(classes) > 0 {
				t.Errorf("class ids %v, want %v", classes, want)
			}
		})
	}
}

// What is in force stays while nobody knows which class a group has: the interfaces could not be looked at, or nothing
// could be tried.
func TestNetClsStays(t *testing.T) {
	a := onLink("a", policy.KeyNetworkEgressMax, policy.BitRate(1e8))
	for name, n := range map[string]*plan.Network{"no look": nil, "untried": shaped("?"),
		"no cls_cgroup": shaped(netshape.HasNetCls)} {
		i := input(factsWith(v1("cpu"), v1("net_cls")), a)
		i.Network = shaped()
		inPlace(&i)
		if held := i.Observed.Dirs[cgroup.Dir{Hierarchy: "net_cls",
			Path: "/bulkhead/a"}][knob.FileClassID]; held != "2147418144" {
			t.Fatalf("in force is %q", held)
		}
		i.Network = n
		for _, s := range Make(i).Steps {
			if s.File().Name == knob.FileClassID {
				t.Errorf("%s: %s of %s becomes %q", name, s.File().Name, s.Dir(), s.New)
			}
		}
	}
	// Without the limit it goes.
	i := input(factsWith(v1("cpu"), v1("cpuacct", "net_cls")), a)
	i.Network = shaped()
	inPlace(&i)
	for _, above := range []string{"/", "/bulkhead"} {
		dir := cgroup.Dir{Hierarchy: "cpuacct,net_cls", Path: above}
		i.Observed.Dirs[dir] = map[string]string{knob.FileClassID: "0"}
	}
	i.Classified = groupsOf(group("a", nil))
	i.Network.Has = nil
	if p := Make(i); !slices.ContainsFunc(p.Steps,
		func(s plan.Step) bool { return s.File().Name == knob.FileClassID && s.New == "0" }) {
		t.Errorf("the class stays: %v", p.Steps)
	}
}

// A group below one with a limit, with a limit of its own on another interface alone, is held by both: its packets bear
// one number everywhere.
func TestLimitsOnTwoInterfaces(t *testing.T) {
	for name, f := range map[string]*host.Facts{"programs": unifiedHost(),
		"net_cls": factsWith(v1("cpu"), v1("net_cls"))} {
		a := onLink("a", policy.KeyNetworkEgressMax, policy.BitRate(1e8))
		a.Inner = true
		below := onLink("a/b", policy.KeyNetworkEgressMax, policy.BitRate(1e7))
		below.Parent, below.Settings[0].On, below.Settings[0].Dev = "a", "eth1", "eth1"
		i := input(f, a, below)
		i.Network = shaped()
		i.Network.Devices = append(i.Network.Devices,
			plan.NetDevice{State: netshape.State{Device: tc.Device{Link: tc.Link{Name: "eth1", Index: 3, Up: true}}}})
		p := Make(i)
		if len(p.Network) != 2 || len(p.Network[0].Groups) != 2 || len(p.Network[1].Groups) != 1 {
			t.Fatalf("%s: %+v\n%s", name, p.Network, told(p))
		}
		if got := p.Network[0].Groups[1]; got.Name != "a/b" || got.Parent != "a" || got.Egress.Max != 100*tc.Mbit {
			t.Errorf("%s: on eth0 it has %+v", name, got)
		}
		if got := told(p); !strings.Contains(got, "a/b: add class 7fff:40") && strings.Count(got, "7fff:40") < 2 {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// A group told by ports below one told by a program would be held by that one's limit alone.
func TestPortsBelowAProgram(t *testing.T) {
	of := func(above policy.Sort, egress bool) string {
		a := onLink("a", policy.KeyNetworkEgressMax, policy.BitRate(1e8))
		if !egress {
			a = onLink("a", policy.KeyNetworkIngressMax, policy.BitRate(1e8))
		}
		a.Inner = true
		a.Settings[0].Network = policy.NetworkPart{Sort: above, Ports: "1"}
		below := onLink("a/b", policy.KeyNetworkEgressMax, policy.BitRate(1e7))
		below.Parent, below.Settings[0].Network = "a", policy.NetworkPart{Sort: policy.SortPorts, Ports: "3306"}
		i := input(unifiedHost(), a, below)
		i.Network = shaped()
		return told(Make(i))
	}
	if got := of("", true); !strings.Contains(got,
		`refused a/b network on eth0: what leaves is told by ports, and "a" above it by a program`) {
		t.Error(got)
	}
	if got := of(policy.SortPorts, true) + of("", false); strings.Contains(got, "refused") {
		t.Error(got)
	}
}

// One interface with what somebody else made holds up its own groups and no others; more groups than there are numbers
// are refused.
func TestNetworkRefusals(t *testing.T) {
	const mbit = policy.BitRate(1e6)
	i := input(unifiedHost(), onLink("a", policy.KeyNetworkEgressMax, 100*mbit), group("b", nil))
	i.Network = shaped()
	i.Network.Devices[0].State.Device.Qdiscs = []tc.Record{{Kind: "tbf", Handle: 0x420000, Parent: 0xffffffff}}
	p := Make(i)
	if got := told(p); len(p.Refusals) != 1 || p.Refusals[0].Group != "a" ||
		!strings.Contains(got, "is left alone: qdisc tbf 42: at root") || !strings.Contains(got, "`replace: true`") {
		t.Error(got)
	}
	i.Released = map[string]bool{"a": true}
	if got := told(Make(i)); strings.Contains(got, "refused") || strings.Contains(got, ": replace") {
		t.Errorf("with the group left out: %s", got)
	}
	// One that is left out and was in force stays as it was.
	i.Network.Devices[0].State.Device.Qdiscs = nil
	i.Network.Slots = map[string]netshape.Slot{"a": 7}
	i.Network.Was = map[string]netshape.Wanted{"eth0": {Groups: []netshape.Group{{Name: "a", Slot: 7,
		Egress: netshape.Share{Max: 30 * tc.Mbit}, Ports: []uint16{1}}}}}
	if p := Make(i); len(p.Network[0].Groups) != 1 || p.Network[0].Groups[0].Egress.Max != 30*tc.Mbit ||
		p.Slots["a"] != 7 {
		t.Errorf("left out: %+v", p.Network)
	}
	var groups []classify.Group
	for n := range 2048 {
		groups = append(groups, onLink(fmt.Sprintf("g%04d", n), policy.KeyNetworkEgressMax, mbit))
	}
	i = input(unifiedHost(), groups...)
	i.Network = shaped()
	if p := Make(i); len(p.Refusals) != 1 ||
		!strings.Contains(p.Refusals[0].Reason, "no class number left: all 2047 are in use") {
		t.Errorf("refusals: %+v", p.Refusals)
	}
}

// A release of one group leaves the others as they were put in force; one of everything takes all away, the record lost
// or not.
func TestNetworkRelease(t *testing.T) {
	const mbit = tc.Mbit
	n := shaped()
	n.Slots = map[string]netshape.Slot{"a": 1, "b": 2}
	was := netshape.Wanted{Device: "eth0", Keep: true, Groups: []netshape.Group{
		{Name: "a", Slot: 1, Egress: netshape.Share{Max: 10 * mbit}, Ports: []uint16{1}},
		{Name: "b", Slot: 2, Egress: netshape.Share{Max: 20 * mbit}, Ports: []uint16{2}},
	}}
	n.Was = map[string]netshape.Wanted{"eth0": was}
	n.Devices[0].Governed = true
	i := input(unifiedHost())
	i.Network, i.Release = n, []string{"a"}
	p := Make(i)
	if len(p.Network) != 1 || len(p.Network[0].Groups) != 1 || p.Network[0].Groups[0].Name != "b" ||
		!p.Network[0].Keep || p.Slots["a"] != 0 || p.Slots["b"] != 2 {
		t.Errorf("released a: %+v", p.Network)
	}
	i.Release = []string{layout.RootGroup}
	if p := Make(i); len(p.Network) != 1 || len(p.Network[0].Groups) != 0 || p.Network[0].Keep || len(p.Slots) != 0 {
		t.Errorf("released all: %+v", p.Network)
	}
	n.Was, n.Slots = nil, nil
	if p := Make(i); len(p.Network) != 1 || len(p.Network[0].Groups) != 0 || p.Network[0].Keep {
		t.Errorf("released without a record: %+v", p.Network)
	}
}
