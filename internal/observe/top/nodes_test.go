package top

import (
	"encoding/json"
	"strings"
	"testing"

	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
	"bulkhead/internal/observe/record"
)

// Memory of a group by node has all nodes of the host, with the kinds of pages in their order; what is not counted is
// said where the host has a pool.
func TestNodes(t *testing.T) {
	sample := observetest.Sample(t)
	sample.Groups[0].Nodes = map[int]map[string]int64{0: {"cache": 1 << 20, "64KB": 0, "1GB": 3 << 30, "2MB": 0,
		"usual": 1 << 30, "transparent": 0}}
	state := func() *State { return (*State)(nil).Next(record.TickOf(sample, observe.Parts)) }
	n := state().Nodes("mysql3306")
	if n == nil {
		t.Fatal("nothing is told")
	}
	var names []string
	for _, p := range n.Pages {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "usual transparent 64KB 2MB 1GB cache" {
		t.Errorf("pages are %s", got)
	}
	if n.Pages[4].Title != "pool, pages of 1 GiB" || n.Missing != "" {
		t.Errorf("%q, missing %q", n.Pages[4].Title, n.Missing)
	}
	if len(n.Nodes) != 2 || n.Nodes[1].ID != 1 || n.Nodes[1].All.Value != 0 || len(n.Nodes[1].Bytes) != 6 ||
		n.Nodes[0].All.Text != "4.0G" || n.Nodes[0].Part != 1 || n.Nodes[0].Share != "100%" ||
		n.Nodes[0].Total.Value != 2049 || n.Nodes[0].Free.Value != 2056 || n.Nodes[0].Bytes[4].Value != 3<<30 {
		text, _ := json.Marshal(n.Nodes)
		t.Errorf("nodes are %s", text)
	}
	if other := state().Nodes("reports"); other != nil {
		t.Errorf("of a group of which nothing is known: %+v", other)
	}
	sample.Groups[0].Nodes = map[int]map[string]int64{0: {"usual": 1 << 30, "transparent": 0}}
	sample.Host.Memory["Hugetlb"] = 1 << 30
	if n := state().Nodes("mysql3306"); !strings.Contains(n.Missing, "memory.huge") {
		t.Errorf("of pages that are not counted it says %q", n.Missing)
	}
	sample.Host.Memory["Hugetlb"] = 0
	if n := state().Nodes("mysql3306"); n.Missing != "" {
		t.Errorf("without a pool it says %q", n.Missing)
	}
	sample.Groups[0].Nodes = map[int]map[string]int64{0: {"usual": 1 << 30, "cache": 0}}
	if n := state().Nodes("mysql3306"); !strings.HasPrefix(n.Missing, "Transparent huge pages are not told apart") {
		t.Errorf("on cgroup v1 it says %q", n.Missing)
	}
	sample.Groups[0].Nodes = map[int]map[string]int64{0: {"2MB": 1 << 30}}
	if n := state().Nodes("mysql3306"); !strings.HasPrefix(n.Missing, "Only huge pages of pools are counted") {
		t.Errorf("without the memory controller it says %q", n.Missing)
	}
	sample.Groups[0].Usage = metrics.Usage{}
	sample.Groups[0].Nodes = map[int]map[string]int64{0: {"usual": 0}}
	if n := state().Nodes("mysql3306"); n.Nodes[0].Part != 0 || n.Nodes[0].Share != "0%" {
		t.Errorf("of no memory: %+v", n.Nodes[0])
	}
}
