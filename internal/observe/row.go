package observe

import (
	"slices"
	"strings"

	"bulkhead/internal/metrics"
)

// The label of every figure of a group.
var groupLabels = []string{"group", "role", "engine"}

// Row is one metric. Its figures are told by exactly one of the functions below.
type Row struct {
	Name string
	Part Part
	Kind metrics.Kind
	// Labels beside those of the group, in the order in which values are told.
	Labels []string
	Help   string
	// Fields are the fields of metrics.Fields that it shows, and the values of its labels for each but a device.
	Fields []Shown
	// Source is where it is from, for the documentation; of Fields it is theirs.
	Source string
	// Recorded is one that is told to the record, `top` and `suspects` and not to scrapers, for which it has too many
	// figures.
	Recorded bool
	// FromZero is a counter whose figures come later than its group, and were zero before.
	FromZero bool

	group  func(s *Sample, g *Group, tell Tell)
	sample func(s *Sample, tell Tell)
}

// Shown is a field of metrics.Fields in a row.
type Shown struct {
	Field  *metrics.Field
	Labels []string
}

// Tell takes one figure with the values of the row's labels, which hold until it returns.
type Tell func(value float64, labels ...string)

// OfGroup says whether the row has figures of each group.
func (r *Row) OfGroup() bool { return r.group != nil || len(r.Fields) > 0 }

// AllLabels are the names of the row's labels, in the order in which Each tells their values.
func (r *Row) AllLabels() []string {
	if !r.OfGroup() {
		return r.Labels
	}
	return slices.Concat(groupLabels, r.Labels)
}

// Each tells every figure of the row that a sample has: none when its collector is off, or has not read for long.
func (r *Row) Each(s *Sample, tell Tell) {
	if !s.Has(r.Part) {
		return
	}
	if !r.OfGroup() {
		r.sample(s, tell)
		return
	}
	all := make([]string, len(groupLabels), len(groupLabels)+4) // one for every figure
	with := func(value float64, labels ...string) { tell(value, append(all, labels...)...) }
	for i := range s.Groups {
		g := &s.Groups[i]
		all[0], all[1], all[2] = g.Group, g.Role, g.Engine
		if r.group != nil {
			r.group(s, g, with)
			continue
		}
		for i := range r.Fields {
			shown := &r.Fields[i]
			by := divisor(shown.Field.Unit)
			shown.Field.Each(&g.Usage, func(device string, value float64) {
				labels := all
				if device != "" {
					labels = append(labels, s.device(device))
				}
				tell(value/by, append(labels, shown.Labels...)...)
			})
		}
	}
}

// device is the kernel's name of a block device, or its number where that is not known.
func (s *Sample) device(number string) string {
	if name, known := s.Devices[number]; known {
		return name
	}
	return number
}

// divisor makes a figure one in base units: seconds, and parts of one.
func divisor(u metrics.Unit) float64 {
	switch u {
	case metrics.Microseconds:
		return 1e6
	case metrics.Percent:
		return 100
	}
	return 1
}

// field finds a field of metrics.Fields by its name.
func field(name string) *metrics.Field {
	i := slices.IndexFunc(metrics.Fields, func(f metrics.Field) bool { return f.Name == name })
	return &metrics.Fields[i]
}

// show gives fields by their names, each behind the values of its labels: "user=cpu.user_us", "read=io[].read_bytes".
func show(texts ...string) (all []Shown) {
	for _, text := range texts {
		labels, name, labelled := strings.Cut(text, "=")
		if !labelled {
			all = append(all, Shown{Field: field(text)})
			continue
		}
		all = append(all, Shown{Field: field(name), Labels: strings.Split(labels, ",")})
	}
	return all
}
