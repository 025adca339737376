package unitfile

import (
	"strings"

	"bulkhead/internal/convert"
)

// leftProperties are settings of resource control that have no place in a policy: why, and what to do instead.
var leftProperties = map[string][2]string{
	"StartupCPUWeight":          {"a policy has no values for the start of the host"},
	"StartupCPUShares":          {"a policy has no values for the start of the host"},
	"StartupIOWeight":           {"a policy has no values for the start of the host"},
	"StartupBlockIOWeight":      {"a policy has no values for the start of the host"},
	"StartupAllowedCPUs":        {"a policy has no values for the start of the host"},
	"StartupAllowedMemoryNodes": {"a policy has no values for the start of the host"},
	"StartupMemoryHigh":         {"a policy has no values for the start of the host"},
	"StartupMemoryMax":          {"a policy has no values for the start of the host"},
	"StartupMemorySwapMax":      {"a policy has no values for the start of the host"},
	"StartupMemoryLow":          {"a policy has no values for the start of the host"},
	"DefaultMemoryLow":          {"bulkhead gives each group its own values"},
	"DefaultMemoryMin":          {"bulkhead gives each group its own values"},
	"DefaultStartupMemoryLow":   {"bulkhead gives each group its own values"},
	"MemoryZSwapMax":            {convert.NoKey}, "StartupMemoryZSwapMax": {convert.NoKey},
	"MemoryZSwapWriteback": {convert.NoKey}, "MemoryKSM": {convert.NoKey}, "MemoryTHP": {convert.NoKey},
	"IODeviceLatencyTargetSec": {convert.NoKey},
	"DevicePolicy": {"bulkhead does not govern access to devices",
		"leave it in the unit: systemd holds it"},
	"DeviceAllow": {"bulkhead does not govern access to devices",
		"leave it in the unit: systemd holds it"},
	"IPAddressAllow": {"bulkhead limits rates, not addresses",
		"leave it in the unit: systemd holds it"},
	"IPAddressDeny": {"bulkhead limits rates, not addresses",
		"leave it in the unit: systemd holds it"},
	"IPIngressFilterPath":                 {convert.NoKey, "leave it in the unit: systemd holds it"},
	"IPEgressFilterPath":                  {convert.NoKey, "leave it in the unit: systemd holds it"},
	"BPFProgram":                          {convert.NoKey, "leave it in the unit: systemd holds it"},
	"NFTSet":                              {convert.NoKey, "leave it in the unit: systemd holds it"},
	"SocketBindAllow":                     {convert.NoKey, "leave it in the unit: systemd holds it"},
	"SocketBindDeny":                      {convert.NoKey, "leave it in the unit: systemd holds it"},
	"RestrictNetworkInterfaces":           {convert.NoKey, "leave it in the unit: systemd holds it"},
	"ManagedOOMSwap":                      {"systemd-oomd acts by itself", "leave it in the unit"},
	"ManagedOOMMemoryPressure":            {"systemd-oomd acts by itself", "leave it in the unit"},
	"ManagedOOMMemoryPressureLimit":       {"systemd-oomd acts by itself", "leave it in the unit"},
	"ManagedOOMMemoryPressureDurationSec": {"systemd-oomd acts by itself", "leave it in the unit"},
	"ManagedOOMPreference":                {"systemd-oomd acts by itself", "leave it in the unit"},
	"MemoryPressureWatch":                 {convert.NoKey}, "MemoryPressureThresholdSec": {convert.NoKey},
	"CoredumpReceive": {convert.NoKey}, "CPUPressureWatch": {convert.NoKey}, "IOPressureWatch": {convert.NoKey},
	"Delegate":           {"the unit's own business", "leave it in the unit"},
	"DelegateSubgroup":   {"the unit's own business", "leave it in the unit"},
	"DisableControllers": {"bulkhead turns controllers on where a limit needs them"},
	"CPUSetPartition":    {"bulkhead gives CPUs, and takes them from nobody"},
	"ConcurrencyHardMax": {convert.NoKey}, "ConcurrencySoftMax": {convert.NoKey},
}

// leftLists are those of them that add up.
var leftLists = []string{"DeviceAllow", "IPAddressAllow", "IPAddressDeny", "IPIngressFilterPath", "IPEgressFilterPath",
	"BPFProgram", "NFTSet", "SocketBindAllow", "SocketBindDeny", "RestrictNetworkInterfaces",
	"IODeviceLatencyTargetSec", "Delegate", "DisableControllers"}

// processProperties are settings of a service's processes that look like limits.
var processProperties = map[string][2]string{
	"CPUAffinity":          {"it is of the processes, not of the group", "ask for cpu.cpus, which they cannot leave"},
	"NUMAPolicy":           {"it is of the processes, not of the group", "ask for memory.numa"},
	"NUMAMask":             {"it is of the processes, not of the group", "ask for memory.numa"},
	"Nice":                 {"it is of the processes, not of the group", "cpu.weight shares the CPU between groups"},
	"CPUSchedulingPolicy":  {"it is of the processes, not of the group"},
	"IOSchedulingClass":    {"it is of the processes, not of the group"},
	"IOSchedulingPriority": {"it is of the processes, not of the group"},
	"LimitAS":              {"it is of each process", "memory.max is of the group"},
	"LimitNPROC":           {"it is of each user", "tasks is of the group"}, "LimitCPU": {"it is of each process"},
}

// asks says whether a setting that has no place in a policy asks for anything.
func (a assignment) asks() bool {
	switch a.value {
	case "auto", "infinity":
		return false
	case "no", "false", "0": // of these settings it is a value as any other
		return strings.HasPrefix(a.name, "StartupAllowed") || strings.Contains(a.name, "ZSwap")
	}
	return true
}
