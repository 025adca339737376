package exposition

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v4"
)

const monitoring = "../../../examples/monitoring/"

// series are those of the golden answer, as Prometheus has them after a scrape.
func series(t *testing.T) (all []map[string]string) {
	t.Helper()
	f, err := os.Open("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(f)
	if err != nil {
		t.Fatal(err)
	}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			one := map[string]string{"__name__": name, "instance": "db1:9786", "job": "bulkhead"}
			for _, l := range m.GetLabel() {
				one[l.GetName()] = l.GetValue()
			}
			all = append(all, one)
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`(bulkhead_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
)

// holds checks that each selector of a query finds series of the golden answer, and that these have the labels by which
// the query goes.
func holds(t *testing.T, query string, all []map[string]string) {
	t.Helper()
	query = strings.NewReplacer("$instance", ".*", "$group", ".*").Replace(query)
	found := selector.FindAllStringSubmatch(query, -1)
	if len(found) == 0 {
		t.Errorf("%s: asks for nothing", query)
	}
	for _, f := range found {
		matches := matcher.FindAllStringSubmatch(f[2], -1)
		chosen := slices.DeleteFunc(slices.Clone(all), func(one map[string]string) bool {
			if one["__name__"] != f[1] {
				return true
			}
			return slices.ContainsFunc(matches, func(m []string) bool {
				value, has := one[m[1]]
				is := value == m[3]
				if strings.HasSuffix(m[2], "~") {
					is = regexp.MustCompile("^(?:" + m[3] + ")$").MatchString(value)
				}
				return !has || is == strings.HasPrefix(m[2], "!")
			})
		})
		if len(chosen) == 0 {
			t.Errorf("%s: nothing is found by %s", query, f[0])
			continue
		}
		for _, g := range grouping.FindAllStringSubmatch(query, -1) {
			for label := range strings.SplitSeq(g[1], ",") {
				if _, has := chosen[0][strings.TrimSpace(label)]; !has {
					t.Errorf("%s: %s has no label %s", query, f[1], label)
				}
			}
		}
	}
}

func TestAlerts(t *testing.T) {
	text, err := os.ReadFile(monitoring + "bulkhead-alerts.yml")
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	if err == nil {
		err = yaml.Unmarshal(text, &file)
	}
	if err != nil || len(file.Groups) != 1 || len(file.Groups[0].Rules) < 5 {
		t.Fatalf("%+v, %v", file, err)
	}
	all := series(t)
	for _, r := range file.Groups[0].Rules {
		holds(t, r.Expr, all)
		if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" ||
			r.Annotations["description"] == "" {
			t.Errorf("%+v is not complete", r)
		}
	}
}

func TestBoard(t *testing.T) {
	text, err := os.ReadFile(monitoring + "bulkhead-grafana.json")
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil || len(board.Panels) == 0 || len(board.Panels) > 12 {
		t.Fatalf("%d panels, %v", len(board.Panels), err)
	}
	all := series(t)
	for _, p := range board.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%s asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			holds(t, target.Expr, all)
		}
	}
	for _, v := range board.Templating.List {
		if v.Definition != "" {
			holds(t, v.Definition, all)
		}
	}
}
