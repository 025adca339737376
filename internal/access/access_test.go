package access

import (
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
)

// Whether an owner may name a path does not depend on what is there: it would learn of files that it cannot see.
func TestOwnersNameDevicesOfTheKernel(t *testing.T) {
	facts := &host.Facts{Devices: []blockdev.Device{{Name: "sdb"}, {Name: "cciss!c0d0"}}}
	v := &snapshot.Snapshot{Facts: facts}
	v.Classified.Groups = []classify.Group{{Path: "shop", Settings: policy.Settings{{On: "/srv/shop"}}}}
	for on, may := range map[string]bool{
		"/dev/sdb": true, "/dev/cciss/c0d0": true, "8:16": true, "eth0": true, "/srv/shop": true,
		"/dev/sdc": false, "/dev/shm/link": false, "/dev/null": false, "/dev/./sdb": false, "/root/.bashrc": false,
		"/dev/../etc/shadow": false,
	} {
		err := mayName(&api.Caller{Identity: procfs.Identity{UID: 54321, Sole: true}}, v, "shop",
			policy.Setting{On: on})
		if want := "uid 54321 may not name the path " + on; err == nil != may || err != nil && err.Error() != want {
			t.Errorf("%s: %v", on, err)
		}
	}
}
