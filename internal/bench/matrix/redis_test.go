package matrix

import (
	"strings"
	"testing"
)

// What a Redis copied is told of saves that were made while the load ran: the one before it, and one that fails, prove
// nothing.
func TestRedisSaved(t *testing.T) {
	before := map[string]float64{"total_forks": 1, "rdb_saves": 1, "rdb_last_cow_size": 4096,
		"rdb_last_bgsave_status": 1}
	failed := map[string]float64{"total_forks": 9, "rdb_last_cow_size": 4096}
	for name, tt := range map[string]struct {
		saving bool
		told   map[string]float64
		want   string
	}{
		"under the load":  {true, before, ""},
		"before it alone": {false, before, "did not save"},
		"failed":          {true, failed, "could not save"},
	} {
		err := (&redis{saving: tt.saving}).proved(tt.told)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
