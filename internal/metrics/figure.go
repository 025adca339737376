package metrics

import "strings"

// Each tells every figure of a field that is known of a group, in the field's unit: one with device "", or one for each
// block device, by its number. Numbers beyond 2^53 lose their last digits.
func (f *Field) Each(u *Usage, tell func(device string, value float64)) {
	switch {
	case f.value != nil:
		if n := *f.value(u); n != nil {
			tell("", float64(*n))
		}
	case f.device != nil:
		for i := range u.IO {
			tell(u.IO[i].Device, float64(*f.device(&u.IO[i])))
		}
	default:
		if n, known := stalled(u, f.Name); known {
			tell("", n)
		}
	}
}

// stalled gives a figure of pressure by its name: "pressure.memory.full.total_us".
func stalled(u *Usage, name string) (value float64, known bool) {
	words := strings.Split(name, ".")
	p, known := u.Pressure[words[1]]
	s := p.Some
	if words[2] == "full" {
		s = p.Full
	}
	if !known || s == nil {
		return 0, false
	}
	switch words[3] {
	case "avg10":
		return s.Avg10, true
	case "avg60":
		return s.Avg60, true
	case "avg300":
		return s.Avg300, true
	}
	return float64(s.Total), true
}

// String is where a figure is read, for people: "memory.stat: anon"; "" where no file tells it.
func (s Source) String() string {
	text := s.File
	if len(s.Keys) > 0 {
		text += ": " + s.Keys[0]
	}
	for _, key := range s.Less[:min(1, len(s.Less))] {
		text += " less " + key
	}
	if s.Since != "" {
		text += " (kernel " + s.Since + ")"
	}
	return text
}
