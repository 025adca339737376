package metrics

import (
	"slices"
	"strings"
)

// Add counts o in: another directory of the same group in the same hierarchy. The peaks of both were at different
// times, so that their sum is none: it is left out. Pressure does not add up either: that of u stays.
func (u *Usage) Add(o *Usage) {
	for i := range Fields {
		f := &Fields[i]
		if f.value != nil {
			to := f.value(u)
			*to = add(*to, *f.value(o))
		}
	}
	u.Memory.Peak, u.Tasks.Peak = nil, nil
	u.IO = slices.Clone(u.IO)
	for _, more := range o.IO {
		i := slices.IndexFunc(u.IO, func(d IO) bool { return d.Device == more.Device })
		if i < 0 {
			u.IO = append(u.IO, more)
			continue
		}
		u.IO[i] = u.IO[i].plus(more)
	}
	slices.SortFunc(u.IO, func(a, b IO) int { return strings.Compare(a.Device, b.Device) })
	if len(u.Pressure) == 0 {
		u.Pressure = o.Pressure
	}
}

// Merge fills what u lacks from o: another hierarchy's view of the same group.
func (u *Usage) Merge(o *Usage) {
	for i := range Fields {
		f := &Fields[i]
		if f.value == nil {
			continue
		}
		if to := f.value(u); *to == nil {
			*to = *f.value(o)
		}
	}
	if len(u.IO) == 0 {
		u.IO = o.IO
	}
	if len(u.Pressure) == 0 {
		u.Pressure = o.Pressure
	}
}

// AllIO is what all block devices together did. Its Device is "".
func (u Usage) AllIO() (all IO) {
	for _, d := range u.IO {
		all = all.plus(d)
	}
	return all
}

// OnDevice is what one block device did; zero where nothing is counted for it.
func (u Usage) OnDevice(device string) IO {
	for _, d := range u.IO {
		if d.Device == device {
			return d
		}
	}
	return IO{Device: device}
}

// plus adds the figures of another device or directory. The device stays.
func (io IO) plus(o IO) IO {
	for _, f := range ioFields {
		*f.device(&io) += *f.device(&o)
	}
	return io
}

// add adds two figures of which either may not be there.
func add(a, b *int64) *int64 {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	return new(*a + *b)
}
