package bench

import (
	"fmt"
	"strings"
)

// policy is the text of the policy that the demo applies: what a DBA would write for this host.
func (d *demo) policy() string {
	return fmt.Sprintf(`version: 1
host:
  root: %s
groups:
  %s:
    role: database
    match:
      - {engine: mysql, port: %d}
      # Its client, or the client starves instead of the server.
      - {cmdline: '--mysql-socket=%s '}
  %s:                      # programs that take every CPU they can get
    role: batch
    cpu: {limit: %d}
  %s:                       # one that takes all memory
    role: batch
    memory: {max: %s, swap: 0}
  %s:                       # and one that writes as fast as the disk goes
    role: helper
    cpu: {weight: 100}
    io: [{on: %s, write: {bandwidth: %s/s}}]
`, demoRoot, groupDatabase, d.server.port, d.server.socket,
		groupCPU, d.sizes.cpuLimit, groupMemory, policyBytes(d.sizes.memoryMax), groupDisk, d.machine.dir, policyBytes(d.sizes.writeRate))
}

// policyBytes writes a whole number of MiB as the policy file wants it.
func policyBytes(n int64) string { return fmt.Sprintf("%dMiB", n>>20) }

// asked says in words what the policy asks for a metered group.
func (d *demo) askedOf(group string) string {
	switch group {
	case groupDatabase:
		return "role database: CPU weight 1000, no limit"
	case groupCPU:
		return fmt.Sprintf("role batch: CPU time that is left over, at most %s", cores(float64(d.sizes.cpuLimit)))
	case groupMemory:
		return fmt.Sprintf("role batch: at most %s of memory", bytesText(d.sizes.memoryMax))
	case groupDisk:
		return fmt.Sprintf("role helper, CPU weight 100: writes at most %s/s to %s", bytesText(d.sizes.writeRate), d.machine.disk.Name)
	}
	return ""
}

// measuredOf says in words what a metered group used, as far as its limits are about it.
func measuredOf(group string, u usage) string {
	var parts []string
	add := func(known bool, format string, args ...any) {
		if known {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	switch group {
	case groupMemory:
		add(u.Peak >= 0, "peak %s", bytesText(u.Peak))
		add(u.OOMKills > 0, "killed in its group %s", times(u.OOMKills))
	case groupDisk:
		add(u.Written >= 0, "%s/s", bytesText(int64(u.Written)))
	default:
		add(u.CPU >= 0, "%s", cores(u.CPU))
	}
	if len(parts) == 0 {
		return "this kernel does not count it"
	}
	return strings.Join(parts, ", ")
}
