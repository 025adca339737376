package audit

import "bulkhead/internal/linux/sysroot"

// Boot is the name of this boot (boot_id of random(4)): what the kernel has counted, as records that were lost, it has
// counted since then.
func Boot(root *sysroot.FS) (string, error) {
	return root.ReadText("/proc/sys/kernel/random/boot_id")
}
