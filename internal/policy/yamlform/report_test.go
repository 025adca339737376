package yamlform

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"limit", "weight", "period", "cpus", "io", "numa"}
	for word, want := range map[string]string{"limt": "limit", "limits": "limit", "wieght": "weight", "cpu": "cpus",
		"LIMIT": "limit", "oi": "io", "bandwidth": "", "x": "", "": "", "nuna": "numa"} {
		if got := Nearest(word, known); got != want {
			t.Errorf("nearest to %q is %q, want %q", word, got, want)
		}
	}
}
