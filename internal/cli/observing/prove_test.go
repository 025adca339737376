package observing

import (
	"slices"
	"testing"

	"bulkhead/internal/attribution"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/transaction"
)

// A placebo has the limits of the hold, and leaves the group what the policy gives it but for a hundredth.
func TestPlacebo(t *testing.T) {
	v := &transaction.View{Snapshot: &snapshot.Snapshot{Facts: &host.Facts{CPUs: idset.Set{0, 1, 2, 3, 4, 5, 6, 7}}}}
	v.Classified.Groups = []classify.Group{{Path: "limited", Settings: policy.Settings{
		{Key: policy.KeyCPULimit, Value: policy.Cores(2 * policy.One)}, {Key: policy.KeyIOReadIOPS, On: "/dev/sda",
			Value: policy.IOPS(500)}}}, {Path: "free"}}
	for _, tt := range []struct {
		hold attribution.Hold
		want []string
	}{
		{attribution.Hold{Assign: []string{"limited:cpu.limit=0.2"}}, []string{"limited:cpu.limit=1.98"}},
		{attribution.Hold{Assign: []string{"free:cpu.limit=0.2"}}, []string{"free:cpu.limit=8"}},
		{attribution.Hold{Assign: []string{"limited:io.read.iops=3", "limited:io.write.bandwidth=4kB/s"},
			On: "/dev/sda"}, []string{"limited:io.read.iops=495", "limited:io.write.bandwidth=1TB/s"}},
	} {
		if got, err := placebo(v, &tt.hold); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, %v, not %v", tt.hold, got, err, tt.want)
		}
	}
}
