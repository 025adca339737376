package host

import (
	"cmp"
	"runtime"
	"slices"
	"strings"
)

// ProcessorName is what the machine calls its CPUs: of /proc/cpuinfo, the model where it has one (x86), else its
// numbers (ARM), else the architecture.
func (h *Host) ProcessorName() string {
	text, err := h.Root.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	var numbers []string
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch name {
		case "model name":
			return value
		case "CPU implementer", "CPU part", "CPU variant", "CPU revision":
			if one := name + " " + value; !slices.Contains(numbers, one) {
				numbers = append(numbers, one)
			}
		}
	}
	return cmp.Or(strings.Join(numbers, ", "), runtime.GOARCH)
}

// Mitigations is what the kernel does about each vulnerability of the CPUs (/sys/devices/system/cpu/vulnerabilities),
// one "name: what" after the other; "" where it does not tell (before 4.15).
func (h *Host) Mitigations() string {
	const dir = "/sys/devices/system/cpu/vulnerabilities"
	names, err := h.Root.ReadDir(dir)
	if err != nil {
		return ""
	}
	slices.Sort(names)
	var all []string
	for _, name := range names {
		if text, err := h.Root.ReadText(dir + "/" + name); err == nil {
			all = append(all, name+": "+text)
		}
	}
	return strings.Join(all, "; ")
}
