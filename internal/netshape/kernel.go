package netshape

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"

	"golang.org/x/sys/unix"
)

// Look reads the state of an interface, and which programs of ours are on the given cgroup2 directories. A directory
// that is gone has none.
func (k *Kernel) Look(name string, cgroups []string) (State, error) {
	var s State
	link, err := k.Link(name)
	if err != nil {
		return s, err
	}
	if s.Device, err = k.Device(link, noFilters); err != nil {
		return s, err
	}
	nic, err := k.Link(nicName(link.Index))
	switch {
	case errors.Is(err, tc.ErrNoDevice):
	case err != nil:
		return s, err
	case !ourNIC(nic):
		return s, fmt.Errorf("look at %s: %s is there and not ours (a %s with alias %q); hint: rename it", name,
			nic.Name, nic.Kind, nic.Alias)
	default:
		d, err := k.Device(nic, noFilters)
		if err != nil {
			return s, err
		}
		s.NIC = &d
	}
	if s.Beyond, err = k.beyond(&s); err != nil {
		return s, err
	}
	for _, dir := range cgroups {
		on, err := bpf.On(dir, link.Index)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		s.Programs, s.Policers = append(s.Programs, on.Sorters...), append(s.Policers, on.Policers...)
		s.Counters = append(s.Counters, on.Counters...)
	}
	return s, nil
}

// beyond names the interfaces that filters send packets to. For our virtual NIC, which is known, it asks nothing.
func (k *Kernel) beyond(s *State) (map[int]string, error) {
	names := make(map[int]string)
	for _, f := range s.Device.Filters {
		for _, index := range f.Redirects() {
			if _, known := names[index]; known || s.nic(index) != "" {
				continue
			}
			l, err := k.LinkByIndex(index)
			if err != nil && !errors.Is(err, tc.ErrNoDevice) {
				return nil, err
			}
			names[index] = l.Name
		}
	}
	return names, nil
}

// aliasPrefix begins what `ip link` shows beside our virtual NIC; the kernel keeps it with the NIC, so it tells ours
// from others'. The name of the interface follows, as it was then: an interface may be renamed.
const aliasPrefix = "bulkhead: what arrives at "

// Strays finds virtual NICs of ours whose interface is gone: its qdiscs and filters went with it, the NIC stays. It
// gives the changes that remove them.
func (k *Kernel) Strays() ([]Change, error) {
	links, err := k.Links()
	if err != nil {
		return nil, err
	}
	there := make(map[string]bool)
	for _, l := range links {
		there[nicName(l.Index)] = true
	}
	var all []Change
	for _, nic := range links {
		if ourNIC(nic) && !there[nic.Name] {
			all = append(all, Change{Verb: tc.Delete, What: NIC, Device: nic.Name, Index: nic.Index,
				For: strings.TrimPrefix(nic.Alias, aliasPrefix)})
		}
	}
	return all, nil
}

// Do makes one change.
func (k *Kernel) Do(c Change) error {
	var err error
	switch c.What {
	case NIC:
		err = k.nic(c)
	case Sorter, Counter:
		err = bpf.Do(c.Verb, c.Program)
	case Policer:
		if _, err = k.at(c); err == nil {
			err = bpf.Do(c.Verb, c.Program)
		}
	default:
		err = k.control(c)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c, explain(c, err))
	}
	return nil
}

// explain names the missing piece: a kernel without the module says ENOENT to a qdisc or filter of that kind.
func explain(c Change, err error) error {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) || c.Verb == tc.Delete {
		return err
	}
	var modules []string
	switch c.What {
	case Qdisc:
		modules = []string{"sch_" + c.Record.Kind}
	case FilterOf:
		if modules = []string{"cls_" + c.Record.Kind}; c.Filter != nil && c.Filter.Redirect != "" {
			modules = append(modules, "act_mirred")
		}
	case NIC:
		modules = []string{"ifb"}
	default:
		return err
	}
	return fmt.Errorf("%w: %s: %w; hint: `modprobe %s`, or a kernel that has it", bpf.ErrNoKernel,
		strings.Join(modules, " or "), err, modules[0])
}

// Run makes the changes of steps in order. When one fails, those before it are undone, last first, and both are told.
func (k *Kernel) Run(steps []Step) error {
	for i, s := range steps {
		err := k.Do(s.Do)
		if err == nil {
			continue
		}
		for j := i - 1; j >= 0; j-- {
			for _, u := range steps[j].Undo {
				if e := k.Do(u); e != nil {
					err = errors.Join(err, fmt.Errorf("undo: %w", e))
				}
			}
		}
		return err
	}
	return nil
}

// Options of Open. The zero value is the network namespace of the caller.
type Options struct {
	// Namespace is an open network namespace to work in instead.
	Namespace *os.File
}

// Kernel reads and changes what bulkhead has on the interfaces of one network namespace.
type Kernel struct{ *tc.Conn }

// Open connects to the kernel. Close frees what it holds, and changes nothing: all that was made stays.
func Open(o Options) (*Kernel, error) {
	conn, err := tc.Dial(o.Namespace)
	if err != nil {
		return nil, err
	}
	return &Kernel{conn}, nil
}

// noFilters says of which of our qdiscs and classes nobody has filters: all but the root.
func noFilters(h tc.Handle) bool { return ours(h) && h != tc.MakeHandle(rootMajor, 0) }

func ourNIC(l tc.Link) bool {
	return l.Kind == "ifb" && strings.HasPrefix(l.Name, nicPrefix) && strings.HasPrefix(l.Alias, aliasPrefix)
}

// at resolves the interface of a change: the one that was looked at, under the name it had then.
func (k *Kernel) at(c Change) (tc.Link, error) {
	l, err := k.Link(c.Device)
	if err == nil && c.Index != 0 && l.Index != c.Index {
		return l, fmt.Errorf("%w: %s is another one than before (index %d, was %d)", tc.ErrNoDevice, c.Device, l.Index,
			c.Index)
	}
	return l, err
}

// control sends one traffic control message.
func (k *Kernel) control(c Change) error {
	switch c.What {
	case Qdisc, ClassOf, FilterOf:
	default:
		return fmt.Errorf("no way to change a %s", c.What)
	}
	l, err := k.at(c)
	if err != nil {
		return err
	}
	r := c.Record
	if c.Verb != tc.Delete && len(c.To) > 0 {
		var to []int
		for _, name := range c.To {
			l, err := k.Link(name)
			if err != nil {
				return fmt.Errorf("it leads to %s: %w", name, err)
			}
			to = append(to, l.Index)
		}
		r = r.Redirected(to)
	}
	if c.Filter != nil && c.Verb != tc.Delete {
		nic := 0
		if c.Filter.Redirect != "" {
			to, err := k.Link(c.Filter.Redirect)
			if err != nil {
				return err
			}
			nic = to.Index
		}
		r.Options = c.Filter.Options(nic)
		if c.Filter.Kind() == "u32" {
			r.Handle = 0 // u32 gives one; the preference is what tells them apart
		}
	}
	return k.Write(c.Verb, tc.Object(c.What), l.Index, r)
}

// nic makes our virtual NIC or takes it away.
func (k *Kernel) nic(c Change) error {
	if c.Verb == tc.Delete {
		l, err := k.at(c)
		if err != nil {
			return err
		}
		if !ourNIC(l) {
			return fmt.Errorf("a %s with alias %q is not ours", l.Kind, l.Alias)
		}
		return k.DeleteIFB(l)
	}
	served, err := k.Link(c.For)
	if err != nil {
		return err
	}
	return k.AddIFB(c.Device, aliasPrefix+c.For, served.MTU, 1000)
}
