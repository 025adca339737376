package scenario

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/policy/yamlform"
)

// Matrix is one load in every combination of a page size, a size of its database and a number of clients. Each is an
// arm, a cell; they are measured in random order, and the database starts anew for each. A Redis saves all the while.
type Matrix struct {
	Load    string
	Pages   []PageSize
	Sizes   []Point // of the database, MiB
	Clients []Point
}

// PageSize is that of the database's memory.
type PageSize struct {
	Name  string // "2MiB"
	Word  string // "p2m": arms begin with it
	Bytes int64  // 0 of transparent huge pages: the kernel makes them of usual ones
}

var pageSizes = []PageSize{{"4KiB", "p4k", 4 << 10}, {"2MiB", "p2m", 2 << 20}, {"1GiB", "p1g", 1 << 30},
	{"transparent", "thp", 0}}

// matrices say by engine which program loads it in a matrix, and which pages its memory can have.
var matrices = map[string]struct {
	program string
	pages   []string
}{
	"postgresql": {"pgbench", []string{"4KiB", "2MiB", "1GiB"}},
	"mariadb":    {"sysbench", []string{"4KiB", "2MiB"}},
	"redis":      {"redis-benchmark", []string{"4KiB", "transparent"}},
}

// Point is one value of an axis.
type Point struct {
	Name string
	Is   Expression
}

// Cell is the combination of an arm.
type Cell struct {
	Page          PageSize
	Size, Clients Point
}

// name is that of the cell's arm: "p2m_fits_many".
func (c Cell) name() string { return c.Page.Word + "_" + c.Size.Name + "_" + c.Clients.Name }

func (r *reader) matrix() yamlform.Form[Matrix] {
	points := func(name string, get func(*Matrix) *[]Point) yamlform.FormKey[Matrix] {
		return yamlform.FormKey[Matrix]{Name: name, Read: func(i yamlform.Item, m *Matrix) {
			for _, n := range i.Named() {
				if !word.MatchString(n.Name) {
					n.Item.Fail("use letters, digits and _: expressions speak of it", "%q is no name in %s", n.Name,
						name)
					continue
				}
				if e, ok := r.expression(n.Item); ok {
					*get(m) = append(*get(m), Point{n.Name, e})
					for _, used := range e.Names() {
						r.uses = append(r.uses, use{n.Item, "quantity", used})
					}
				}
			}
		}}
	}
	return yamlform.Form[Matrix]{Name: "a matrix", Keys: []yamlform.FormKey[Matrix]{
		refers(r, "load", "load", func(m *Matrix) *string { return &m.Load }),
		{Name: "pages", Read: func(i yamlform.Item, m *Matrix) {
			var names []string
			for _, p := range pageSizes {
				names = append(names, p.Name)
			}
			for _, item := range i.Items("write a list: [4KiB, 2MiB]") {
				if w, ok := item.Word(names...); ok {
					m.Pages = append(m.Pages, pageSizes[slices.Index(names, w)])
				}
			}
		}},
		points("sizes", func(m *Matrix) *[]Point { return &m.Sizes }),
		points("clients", func(m *Matrix) *[]Point { return &m.Clients }),
	}}
}

// cells makes the arms of the matrix.
func (r *reader) cells(i yamlform.Item) {
	m := r.s.Matrix
	if m == nil {
		return
	}
	load := slices.IndexFunc(r.s.Loads, func(l Load) bool { return l.Name == m.Load })
	var of Database
	if load >= 0 {
		of, _ = r.s.DatabaseNamed(r.s.Loads[load].On)
	}
	can := matrices[of.Engine]
	unfit := slices.IndexFunc(m.Pages, func(p PageSize) bool { return !slices.Contains(can.pages, p.Name) })
	switch all := len(m.Pages) * len(m.Sizes) * len(m.Clients); {
	case i.Has("arms"):
		i.Fail("leave arms: out, or matrix:", "the cells of a matrix are all arms that there are")
	case all == 0:
		i.Fail("write matrix: {load: …, pages: [4KiB, 2MiB], sizes: {small: 256}, clients: {few: 2}}",
			"the matrix has no cell")
	case all > maxList:
		i.Fail("", "the matrix has %d cells, more than %d", all, maxList)
	case load < 0 || len(r.s.Loads) > 1 || r.s.Loads[load].Program != can.program:
		i.Fail("write one load: pgbench of a postgresql, sysbench of a mariadb, or redis-benchmark of a redis",
			"a matrix is of one load, of the engine's own program")
	case unfit >= 0:
		i.Fail("write pages: ["+strings.Join(can.pages, ", ")+"]", "no memory of a %s is in pages of %s", of.Engine,
			m.Pages[unfit].Name)
	default:
		for _, page := range m.Pages {
			for _, size := range m.Sizes {
				for _, clients := range m.Clients {
					c := &Cell{page, size, clients}
					r.s.Arms = append(r.s.Arms, Arm{Name: c.name(), Cell: c, Restart: []string{r.s.Loads[load].On},
						Text: fmt.Sprintf("%s, %s, %s", page.Name, size.Name, clients.Name)})
				}
			}
		}
	}
}
