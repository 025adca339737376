package fact

import "testing"

func TestSince(t *testing.T) {
	for _, c := range []struct {
		have, want string
		is         bool
	}{{"7.0.1-rc2", "7.0", true}, {"6.18", "7.0", false}, {"7", "7.0", true}, {"10.11", "9.2", true},
		{"8.0", "8.0.1", false}} {
		if got := Since(c.have, c.want); got != c.is {
			t.Errorf("Since(%q, %q) is %v", c.have, c.want, got)
		}
	}
}
