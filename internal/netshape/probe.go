package netshape

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"

	"golang.org/x/sys/unix"
)

// Verdict is what a probe found.
type Verdict string

// Verdicts. Unknown: it could not be tried.
const (
	Yes     Verdict = "yes"
	No      Verdict = "no"
	Unknown Verdict = "could not tell"
)

// Capability is one piece of the kernel.
type Capability struct {
	Name    string // "htb"
	What    string // what it is for
	Verdict Verdict
	Why     string // of No and Unknown
}

// Capabilities is what a kernel has of what shares need.
type Capabilities []Capability

// Has says whether a piece is there.
func (c Capabilities) Has(name string) bool { return c.found(name) == Yes }

// Lacks says whether a piece was tried and is not there.
func (c Capabilities) Lacks(name string) bool { return c.found(name) == No }

func (c Capabilities) found(name string) Verdict {
	for _, one := range c {
		if one.Name == name {
			return one.Verdict
		}
	}
	return Unknown
}

// Leaf is the best queue for a class that the kernel has, for Wanted.Leaf.
func (c Capabilities) Leaf() string {
	for _, kind := range []string{"fq_codel", "fq"} {
		if c.Has(kind) {
			return kind
		}
	}
	return ""
}

// Names of pieces.
const (
	HasHTB     = "htb"
	HasIFB     = "ifb"
	HasMirred  = "act_mirred"
	HasProgram = "cgroup program"
	HasNetCls  = "cls_cgroup"
)

// Probe tries each piece in a network namespace of its own, which is gone afterwards. It touches no interface of the
// host; the kernel may load modules.
func Probe() Capabilities {
	got := make(chan Capabilities)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread and its namespace end with the goroutine
		got <- probe()
	}()
	return <-got
}

// trial is one thing to try on the loopback of an empty namespace. It stays there for the ones after it.
type trial struct {
	name, what string
	changes    []Change
}

const probeDevice = "lo"

func trials() []trial {
	leaf := tc.MakeHandle(rootMajor, slotStep)
	nic := Change{Verb: tc.Add, What: NIC, Device: nicPrefix, For: probeDevice}
	qdisc := func(verb tc.Verb, kind string, h, parent tc.Handle, options []byte) Change {
		return Change{Verb: verb, What: Qdisc, Device: probeDevice,
			Record: tc.Record{Kind: kind, Handle: h, Parent: parent, Options: options}}
	}
	filter := func(parent tc.Handle, f tc.Filter) Change {
		r := tc.Record{Kind: f.Kind(), Parent: parent, Info: tc.FilterInfo(prefBase, f.Protocol)}
		if f.NetCls {
			r.Handle, r.Info = 1, tc.FilterInfo(prefLast, f.Protocol)
		}
		return Change{Verb: tc.Add, What: FilterOf, Device: probeDevice, Record: r, Filter: &f}
	}
	c := Class{ID: leaf, Parent: tc.MakeHandle(rootMajor, 0), Rate: tc.Gbit, Ceil: tc.Gbit, Burst: burst(tc.Gbit),
		Cburst: burst(tc.Gbit), Quantum: quantum(tc.Gbit)}
	class := Change{Verb: tc.Add, What: ClassOf, Device: probeDevice,
		Record: tc.Record{Kind: "htb", Handle: c.ID, Parent: c.Parent, Options: c.htb().Options()}}
	return []trial{
		{HasHTB, "shares what leaves", []Change{qdisc(tc.Replace, "htb", tc.MakeHandle(rootMajor, 0), tc.AtRoot,
			tc.HTBOptions(restMinor, 1000)), class}},
		{tc.ByteQueue, "queue of a class", []Change{qdisc(tc.Replace, tc.ByteQueue, Slot(1).leaf(), leaf,
			tc.LeafOptions(tc.ByteQueue, tc.Gbit))}},
		{"fq_codel", "better queue of a class",
			[]Change{qdisc(tc.Replace, "fq_codel", Slot(2).leaf(), leaf, tc.LeafOptions("fq_codel", tc.Gbit))}},
		{"fq", "better queue of a class", []Change{qdisc(tc.Replace, "fq", Slot(3).leaf(), leaf, nil)}},
		{"cls_u32", "sorts by port", []Change{filter(tc.MakeHandle(rootMajor, 0),
			tc.Filter{Protocol: tc.ProtoIPv4, Port: 1, Class: leaf})}},
		{HasNetCls, "sorts by net_cls", []Change{filter(tc.MakeHandle(rootMajor, 0),
			tc.Filter{Protocol: tc.ProtoAll, NetCls: true})}},
		{HasIFB, "shares what arrives", []Change{nic}},
		{"ingress", "hook for what arrives", []Change{qdisc(tc.Add, "ingress", tc.IngressHandle, tc.AtIngress, nil)}},
		{HasMirred, "leads what arrives to the virtual NIC",
			[]Change{filter(tc.IngressHandle, tc.Filter{Protocol: tc.ProtoIPv4, Port: 1, Redirect: nicPrefix})}},
	}
}

func probe() Capabilities {
	var all Capabilities
	k, err := inside()
	if err == nil {
		defer k.Close()
	}
	for _, t := range trials() {
		c := Capability{Name: t.name, What: t.what, Verdict: Unknown}
		if err != nil {
			c.Why = err.Error()
		} else {
			c.Verdict, c.Why = k.try(t.changes)
		}
		all = append(all, c)
	}
	c := Capability{Name: HasProgram, What: "sorts by cgroup2 directory", Verdict: Yes}
	if err := bpf.TrySorter(); err != nil {
		c.Verdict, c.Why = verdict(err)
	}
	return append(all, c)
}

// inside takes the calling thread into a new namespace.
func inside() (*Kernel, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return Open(Options{})
}

func (k *Kernel) try(changes []Change) (Verdict, string) {
	for _, c := range changes {
		if err := k.Do(c); err != nil {
			return verdict(err)
		}
	}
	return Yes, ""
}

// verdict tells "the kernel has it not" from "this process may not".
func verdict(err error) (Verdict, string) {
	if errors.Is(err, os.ErrPermission) {
		return Unknown, err.Error()
	}
	return No, err.Error()
}
