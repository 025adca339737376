package unitfile

import (
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

type sliceImport struct {
	*convert.Draft
	bySlice map[string]*convert.Group // groups by the slice that they are
	paths   map[string]bool           // of these groups
	claimed map[*convert.Group]map[string]bool
	done    map[string]bool // slices of an export's own
	rank    map[string]int
	both    []twoWeights
	// processes is what the units in the group of a slice say of their processes: OOMScoreAdjust=, OOMPolicy=.
	processes map[*convert.Group][2]string
}

func newSliceImport(d *convert.Draft) *sliceImport {
	return &sliceImport{Draft: d, bySlice: map[string]*convert.Group{}, paths: map[string]bool{},
		claimed: map[*convert.Group]map[string]bool{}, done: map[string]bool{}, rank: map[string]int{},
		processes: map[*convert.Group][2]string{}}
}

// twoWeights is a unit that has a weight on both scales.
type twoWeights struct {
	unit           string
	weight, shares int64
	at             policy.Pos
	what           string
}

// ofSlice finds or makes the group that a slice is.
func (im *sliceImport) ofSlice(name string, at policy.Pos) *convert.Group {
	if g := im.bySlice[name]; g != nil {
		return g
	}
	g := im.Draft.Group(strings.ReplaceAll(strings.TrimSuffix(name, ".slice"), "/", "-"), at)
	if g != nil {
		g.Keys = append(g.Keys, convert.Raw{Key: "slice", Text: yamlform.Quote(name)})
		im.isSlice(name, g)
	}
	return g
}

// isSlice remembers the group that a slice is.
func (im *sliceImport) isSlice(name string, g *convert.Group) {
	im.bySlice[name], im.paths[g.Path] = g, true
}
