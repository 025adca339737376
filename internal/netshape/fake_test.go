package netshape

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"bulkhead/internal/linux/nlattr"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// fake keeps one interface, its virtual NIC and programs, by the kernel's rules. On top of those it refuses what would
// cut the host off: taking the virtual NIC away while something is redirected to it, or redirecting to one that is not
// there.
type fake struct {
	state  State
	nextID int
}

func newFake(foreign ...tc.Record) *fake {
	f := &fake{nextID: 10}
	f.state.Device.Link = tc.Link{Name: "eth0", Index: 2, MTU: 1500, TxQueue: 1000, Up: true}
	f.state.Device.Qdiscs = slices.Clone(foreign)
	return f
}

func (f *fake) look() State {
	s := f.state
	clone := func(d tc.Device) tc.Device {
		d.Qdiscs, d.Classes, d.Filters = slices.Clone(d.Qdiscs), slices.Clone(d.Classes), slices.Clone(d.Filters)
		for i := range d.Qdiscs {
			d.Qdiscs[i] = showTimes(d.Qdiscs[i])
		}
		return d
	}
	s.Device = clone(s.Device)
	if s.NIC != nil {
		nic := clone(*s.NIC)
		s.NIC = &nic
	}
	s.Programs, s.Policers = slices.Clone(s.Programs), slices.Clone(s.Policers)
	return s
}

func shownTime(written uint32) uint32 { return uint32(uint64(written) * 1000 / 1024 * 1024 / 1000) }

func (f *fake) run(steps []Step) error {
	for _, s := range steps {
		if err := f.Do(s.Do); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) Do(c Change) error {
	err := f.change(c)
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}

func (f *fake) there(c Change) (bool, error) {
	with := func(all []bpf.Program) bool {
		return slices.ContainsFunc(all, func(p bpf.Program) bool {
			return p.Cgroup == c.Program.Cgroup && p.Name == c.Program.Name
		})
	}
	switch nic := f.state.NIC; {
	case c.What == Sorter:
		return with(f.state.Programs), nil
	case c.What == Policer:
		return with(f.state.Policers), nil
	case c.Device == f.state.Device.Name:
		return has(&f.state.Device, c), nil
	default:
		return nic != nil && nic.Name == c.Device && (c.What == NIC || has(nic, c)), nil
	}
}

func (f *fake) change(c Change) error {
	switch c.What {
	case NIC:
		return f.nic(c)
	case Sorter:
		return f.program(&f.state.Programs, c)
	case Policer:
		return f.program(&f.state.Policers, c)
	}
	d := &f.state.Device
	if c.Device != d.Name {
		if d = f.state.NIC; d == nil || d.Name != c.Device {
			return tc.ErrNoDevice
		}
	}
	switch c.What {
	case Qdisc:
		return f.qdisc(d, c)
	case ClassOf:
		return f.class(d, c)
	}
	return f.filter(d, c)
}

func (f *fake) redirected() bool {
	return slices.ContainsFunc(f.state.Device.Filters, func(r tc.Record) bool { return f.state.ownFilter(r) })
}

func (f *fake) nic(c Change) error {
	switch {
	case c.Verb == tc.Add && f.state.NIC != nil:
		return errors.New("file exists")
	case c.Verb == tc.Add:
		f.nextID++
		f.state.NIC = &tc.Device{Link: tc.Link{Name: c.Device, Index: f.nextID, Kind: "ifb", TxQueue: 1000, Up: true}}
	case f.state.NIC == nil:
		return tc.ErrNoDevice
	case f.redirected():
		return errors.New("the host would be cut off: packets are still redirected there")
	default:
		f.state.NIC = nil
	}
	return nil
}

func (f *fake) program(all *[]bpf.Program, c Change) error {
	if c.Verb == tc.Add {
		f.nextID++
		p := *c.Program
		p.ID = uint32(f.nextID)
		*all = append(*all, p)
		return nil
	}
	i := slices.IndexFunc(*all, func(p bpf.Program) bool {
		return p.Cgroup == c.Program.Cgroup && p.Name == c.Program.Name && (c.Program.ID == 0 || c.Program.ID == p.ID)
	})
	switch {
	case i < 0:
		return errors.New("no such program")
	case c.Verb == tc.Alter:
		(*all)[i].Rate = c.Program.Rate
	default:
		*all = slices.Delete(*all, i, i+1)
	}
	return nil
}

func index(all []tc.Record, h tc.Handle) int {
	return slices.IndexFunc(all, func(r tc.Record) bool { return r.Handle == h })
}

func (f *fake) qdisc(d *tc.Device, c Change) error {
	r := c.Record
	r.Options = slices.Clone(r.Options)
	i := slices.IndexFunc(d.Qdiscs, func(q tc.Record) bool { return q.Parent == r.Parent && q.Made() })
	if r.Parent != tc.AtRoot && r.Parent != tc.AtIngress && index(d.Classes, r.Parent) < 0 && !foreignBand(r.Parent) {
		return errors.New("no such parent")
	}
	switch {
	case c.Verb == tc.Delete && (i < 0 || d.Qdiscs[i].Handle != r.Handle):
		return errors.New("no such qdisc")
	case c.Verb == tc.Delete || c.Verb == tc.Replace && i >= 0:
		f.dropQdisc(d, d.Qdiscs[i])
	case c.Verb == tc.Alter && (i < 0 || d.Qdiscs[i].Kind != r.Kind || d.Qdiscs[i].Handle != r.Handle):
		return errors.New("no such qdisc")
	case c.Verb == tc.Alter:
		d.Qdiscs[i] = r
		return nil
	case i >= 0:
		return errors.New("file exists")
	}
	if c.Verb != tc.Delete {
		d.Qdiscs = append(d.Qdiscs, r)
	}
	return nil
}

// foreignBand is a class of a qdisc that has them by itself, such as prio.
func foreignBand(h tc.Handle) bool { return !ours(h) && h&0xffff != 0 }

func (f *fake) dropQdisc(d *tc.Device, q tc.Record) {
	d.Qdiscs = slices.DeleteFunc(d.Qdiscs, func(o tc.Record) bool { return o.Handle == q.Handle })
	on := func(h tc.Handle) bool { return h>>16 == q.Handle>>16 }
	for _, c := range slices.Clone(d.Classes) {
		if on(c.Handle) {
			f.dropClass(d, c)
		}
	}
	for _, o := range slices.Clone(d.Qdiscs) {
		if o.Parent != tc.AtRoot && o.Parent != tc.AtIngress && on(o.Parent) {
			f.dropQdisc(d, o)
		}
	}
	d.Filters = slices.DeleteFunc(d.Filters, func(r tc.Record) bool { return on(r.Parent) })
}

func (f *fake) dropClass(d *tc.Device, c tc.Record) {
	d.Classes = slices.DeleteFunc(d.Classes, func(o tc.Record) bool { return o.Handle == c.Handle })
	d.Qdiscs = slices.DeleteFunc(d.Qdiscs, func(q tc.Record) bool { return q.Parent == c.Handle })
}

func (f *fake) class(d *tc.Device, c Change) error {
	r := c.Record
	i := index(d.Classes, r.Handle)
	root := index(d.Qdiscs, r.Handle>>16<<16) >= 0
	top := r.Parent&0xffff == 0
	switch {
	case !root, c.Verb == tc.Add && !top && index(d.Classes, r.Parent) < 0:
		return errors.New("no such parent")
	case c.Verb == tc.Add && i >= 0:
		return errors.New("file exists")
	case c.Verb != tc.Add && i < 0:
		return errors.New("no such class")
	}
	if top {
		r.Parent = tc.AtRoot
	}
	switch {
	case c.Verb == tc.Add:
		d.Classes = append(d.Classes, r)
		if !top { // an inner class has no queue
			d.Qdiscs = slices.DeleteFunc(d.Qdiscs, func(q tc.Record) bool { return q.Parent == r.Parent })
		}
	case c.Verb == tc.Alter && d.Classes[i].Parent != r.Parent:
		return errors.New("invalid argument")
	case c.Verb == tc.Alter:
		d.Classes[i] = r
	case slices.ContainsFunc(d.Classes, func(o tc.Record) bool { return o.Parent == r.Handle }),
		slices.ContainsFunc(d.Filters, func(o tc.Record) bool {
			p,
				_ := tc.ParseFilter(o, f.state.nic)
			return p.Class == r.Handle
		}):
		return unix.EBUSY
	default:
		f.dropClass(d, d.Classes[i])
	}
	return nil
}

func (f *fake) filter(d *tc.Device, c Change) error {
	r := c.Record
	i := slices.IndexFunc(d.Filters, func(o tc.Record) bool { return o.Parent == r.Parent && o.Info>>16 == r.Info>>16 })
	if c.Verb == tc.Delete {
		if i < 0 {
			return errors.New("no such filter")
		}
		d.Filters = slices.DeleteFunc(d.Filters,
			func(o tc.Record) bool { return o.Parent == r.Parent && o.Info>>16 == r.Info>>16 })
		return nil
	}
	if i >= 0 {
		return errors.New("invalid argument: the preference is in use")
	}
	if index(d.Qdiscs, r.Parent) < 0 {
		return errors.New("no such parent")
	}
	if c.Filter != nil {
		nic := 0
		if c.Filter.Redirect != "" {
			if f.state.NIC == nil || f.state.NIC.Name != c.Filter.Redirect {
				return tc.ErrNoDevice
			}
			nic = f.state.NIC.Index
		}
		r.Options = c.Filter.Options(nic)
	}
	if r.Kind == "u32" { // the kernel lists the head and the table first
		d.Filters = append(d.Filters, tc.Record{Kind: r.Kind, Parent: r.Parent, Info: r.Info},
			tc.Record{Kind: r.Kind, Parent: r.Parent, Info: r.Info, Handle: 0x80000000})
		r.Handle = 0x80000800
	}
	d.Filters = append(d.Filters, r)
	return nil
}

// showTimes rounds CoDel's times as the kernel does.
func showTimes(r tc.Record) tc.Record {
	times := map[string][]int{
		"fq_codel": {nl.TCA_FQ_CODEL_TARGET, nl.TCA_FQ_CODEL_INTERVAL, nl.TCA_FQ_CODEL_CE_THRESHOLD},
		"codel":    {1, 3, 5},
	}[r.Kind]
	if len(times) == 0 {
		return r
	}
	var a []byte
	for kind, value := range nlattr.All(r.Options) {
		if slices.Contains(times, kind) {
			value = nl.Uint32Attr(shownTime(binary.NativeEndian.Uint32(value)))
		}
		a = append(a, nl.NewRtAttr(kind, value).Serialize()...)
	}
	r.Options = a
	return r
}
