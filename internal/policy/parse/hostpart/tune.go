package hostpart

import (
	"cmp"
	"slices"
	"strings"

	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// tuneField is `host: {tune: {vm.swappiness: 1, thp: madvise}}`.
func tuneField() yamlform.FormKey[policy.HostPart] {
	return yamlform.FormKey[policy.HostPart]{
		Name: "tune",
		Doc: "Settings of the kernel for the whole host: sysctls by name, paths below /sys, thp and thp_defrag, and " +
			"`disk NAME: {scheduler: none}` for the queue of a disk, by its name or a path below /dev, and " +
			"`unit NAME.service: {LimitNOFILE: 65535}` for a service, `mount /data: {atime: noatime}` for an option " +
			"of a mount, `kernel: {psi: 1}` for the kernel command line. They are in force at once and after each " +
			"boot; what is taken out has its old value again.",
		Schema: policy.JSONSchema{
			"type": "object", "examples": []any{map[string]any{"vm.swappiness": 1, "thp": "madvise",
				"disk vda":           map[string]any{"scheduler": "none"},
				"unit mysql.service": map[string]any{"LimitNOFILE": 65535}}},
			"additionalProperties": policy.JSONSchema{"type": []string{"string", "integer", "object"},
				"additionalProperties": policy.JSONSchema{"type": []string{"string", "integer"}}},
		},
		Read: func(v yamlform.Item, h *policy.HostPart) {
			for _, e := range settingsOf(v) {
				if t, ok := readTuning(e); ok {
					h.Tune = append(h.Tune, t)
				}
			}
			slices.SortStableFunc(h.Tune, func(a, b policy.Tuning) int { return cmp.Compare(a.Name, b.Name) })
			for i, t := range h.Tune {
				for _, other := range h.Tune[:i] {
					switch other.Name {
					case t.Name:
						v.FailAt(t.Pos, "keep one of them", "host.tune: %s is here twice", t.Name)
						v.Also(other.Pos)
					case tunable.Twin(t.Name):
						v.FailAt(t.Pos, "keep one of them: the kernel sets the other to 0",
							"host.tune: %s and %s exclude each other", other.Name, t.Name)
						v.Also(other.Pos)
					}
				}
			}
		},
	}
}

// settingsOf are the entries, each setting of a disk, a unit, a mount or the kernel's command line as one of its own:
// "disk vda/scheduler".
func settingsOf(v yamlform.Item) (all []yamlform.Entry) {
	for _, e := range v.Entries("host.tune.") {
		lead, groups := tunable.Grouped(e.Name)
		if !groups {
			all = append(all, e)
			continue
		}
		for _, of := range e.Item.Entries("host.tune." + lead) {
			of.Name = lead + of.Name
			all = append(all, of)
		}
	}
	return all
}

// readTuning is one setting.
func readTuning(e yamlform.Entry) (t policy.Tuning, ok bool) {
	text, ok := e.Item.Text()
	if !ok {
		return t, false
	}
	if strings.HasPrefix(e.Name, sepolicy.Prefix) {
		e.Item.Fail("", "host.tune: SELinux is not set by a policy: `bulkhead selinux apply` sets it")
		return t, false
	}
	t = policy.Tuning{Name: tunable.Canonical(e.Name), Value: text, Pos: e.Key.Pos()}
	if err := tunable.Check(t.Name, t.Value); err != nil {
		e.Item.Fail("vm.swappiness: 1, thp: madvise, /sys/kernel/mm/ksm/run: 0, disk vda: {scheduler: none}, "+
			"unit mysql.service: {LimitNOFILE: 65535}",
			"host.tune: %s", err)
		return t, false
	}
	return t, true
}
