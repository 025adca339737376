package exposition

import (
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
)

// family is a row of the table as it is exposed.
type family struct {
	row *observe.Row
	// names are those of the labels in the order of Prometheus, and at says which of the values that are told is whose.
	names []*string
	at    []int
	kind  dto.MetricType
}

// families are all rows in the order of the table, the server's own ones first. A registry of collectors would check
// and sort every figure of each answer anew, which is more work than all the rest; here the table is checked by its
// tests.
var families = func() (all []family) {
	add := func(r *observe.Row) {
		f := family{row: r, kind: dto.MetricType_GAUGE}
		if r.Kind == metrics.Counter {
			f.kind = dto.MetricType_COUNTER
		}
		labels := r.AllLabels()
		for _, name := range slices.Sorted(slices.Values(labels)) {
			f.names = append(f.names, &name)
			f.at = append(f.at, slices.Index(labels, name))
		}
		all = append(all, f)
	}
	for i := range observe.Own {
		add(&observe.Own[i])
	}
	for i := range observe.Table {
		if r := &observe.Table[i]; !r.Recorded {
			add(r)
		}
	}
	return all
}()

// metric is one figure with the values of its labels as they are told.
func (f *family) metric(value float64, labels []string) *dto.Metric {
	m := &dto.Metric{Label: make([]*dto.LabelPair, len(f.names))}
	pairs := make([]dto.LabelPair, len(f.names))
	for i, at := range f.at {
		text := strings.ToValidUTF8(labels[at], "\uFFFD")
		pairs[i].Name, pairs[i].Value = f.names[i], &text
		m.Label[i] = &pairs[i]
	}
	if f.kind == dto.MetricType_COUNTER {
		m.Counter = &dto.Counter{Value: &value}
	} else {
		m.Gauge = &dto.Gauge{Value: &value}
	}
	return m
}

// byName are the indices of families in the order of their names, as every answer has them.
var byName = func() []int {
	all := make([]int, len(families))
	for i := range all {
		all[i] = i
	}
	slices.SortFunc(all, func(a, b int) int { return strings.Compare(families[a].row.Name, families[b].row.Name) })
	return all
}()
