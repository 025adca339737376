package agent

import (
	"slices"
	"testing"

	"bulkhead/internal/systemd/sandbox/confined"
)

// A client learns which settings of its unit the agent lacks; of an agent in no unit nothing.
func TestForbidden(t *testing.T) {
	for name, unit := range map[string]*confined.Unit{
		"a unit": {Name: "x.service", Forbids: func(s string) bool { return s == "B=2" }}, "no unit": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newModelSite(t)
			s.run(nil)
			s.control.Unit = unit
			of, forbidden, err := s.client.Forbidden(t.Context(), []string{"A=1", "B=2"})
			if err != nil {
				t.Fatal(err)
			}
			if unit == nil && (of != "" || forbidden != nil) ||
				unit != nil && (of != "x.service" || !slices.Equal(forbidden, []string{"B=2"})) {
				t.Errorf("it says %q of %q", forbidden, of)
			}
		})
	}
}
