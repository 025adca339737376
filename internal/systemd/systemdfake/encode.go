package systemdfake

import (
	"fmt"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// pair is one property of a call.
type pair struct {
	name  string
	value any
}

func pairs(arg any) []pair {
	var list []pair
	for _, one := range arg.([][]any) {
		list = append(list, pair{one[0].(string), one[1].(dbus.Variant).Value()})
	}
	return list
}

func section(name string) string {
	kind := unitname.TypeOf(name)
	return strings.ToUpper(kind[:1]) + kind[1:]
}

// encode checks properties and gives the lines of a unit file for each, by the setting's name. Nothing is done when one
// is refused.
func (h *host) encode(u *unit, list []pair, atStart bool) (map[string][]string, *dbus.Error) {
	files := map[string][]string{}
	for _, p := range list {
		if atStart {
			if lines, ok, err := startOnly(p); err != nil || ok {
				if err != nil {
					return nil, err
				}
				files[strings.SplitN(lines[0], "=", 2)[0]] = lines
				continue
			}
		} else if p.name == "Description" {
			files[p.name] = []string{"Description=" + p.value.(string)}
			continue
		}
		r, ok := systemd.RowOf(p.name)
		if !ok || !r.Known(h.version, unitname.TypeOf(u.name)) || r.StartOnly && !atStart {
			return nil, readOnly(p.name)
		}
		if list, ok := p.value.([][]any); ok && r.Form == systemd.FormDevices {
			files[r.Setting] = addUp(u, r, files[r.Setting], list)
			continue
		}
		lines, err := settingLines(r, p.value, h.version)
		if err != nil {
			return nil, err
		}
		files[r.Setting] = lines
	}
	return files, nil
}

// addUp writes a list: an empty one resets, another adds to what the call set before, else to what the unit has.
func addUp(u *unit, r *systemd.Row, before []string, list [][]any) []string {
	lines := deviceLines(r, list)
	switch {
	case len(list) == 0:
		return lines
	case before != nil:
		return append(before, lines[1:]...)
	}
	for _, old := range u.settings.list(r.Setting) {
		lines = slices.Insert(lines, 1, r.Setting+"="+old)
	}
	return lines
}

// settingLines writes one property as systemd does.
func settingLines(r *systemd.Row, value any, v systemd.Version) ([]string, *dbus.Error) {
	if dbus.SignatureOf(value).String() != r.Form.Signature() {
		return nil, fail("System.Error.ENXIO", "Failed to set unit properties: Unexpected message contents")
	}
	switch value := value.(type) {
	case bool:
		return []string{r.Setting + "=" + map[bool]string{true: "yes", false: "no"}[value]}, nil
	case []byte:
		text, _ := r.Decode(value)
		return []string{r.Setting + "=", r.Setting + "=" + text}[:1+min(len(value), 1)], nil
	case uint64:
		return numberLine(r, value, v)
	case string:
		return []string{r.Setting + "=" + value}, nil
	}
	return nil, fail("System.Error.ENXIO", "Failed to set unit properties: Unexpected message contents")
}

// deviceLines writes a list.
func deviceLines(r *systemd.Row, list [][]any) []string {
	lines := []string{r.Setting + "="}
	for _, one := range list {
		lines = append(lines, fmt.Sprintf("%s=%s %s", r.Setting, strings.ReplaceAll(one[0].(string), "%", "%%"),
			numberText(r, one[1].(uint64))))
	}
	return lines
}

// numberLine refuses what 252 was seen to refuse. A period is not among it: it is clamped.
func numberLine(r *systemd.Row, n uint64, v systemd.Version) ([]string, *dbus.Error) {
	weight := r.Form == systemd.FormWeight
	switch {
	case n == systemd.Infinity, r.Name == "CPUQuotaPeriodUSec", weight && n == 0 && r.IdleSince > 0 &&
		v.AtLeast(r.IdleSince):
	case n < r.Min && r.Name == "CPUQuotaPerSecUSec":
		return nil, invalid("CPUQuotaPerSecUSec= value out of range")
	case n < r.Min, weight && n > r.Max:
		return nil, invalid("Value specified in %s is out of range", r.Name)
	}
	return []string{r.Setting + "=" + numberText(r, n)}, nil
}

func numberText(r *systemd.Row, n uint64) string {
	switch {
	case n == systemd.Infinity && (r.Form == systemd.FormWeight || r.Unset || r.Setting == "CPUQuota"):
		return ""
	case n == systemd.Infinity:
		return "infinity"
	case r.Form == systemd.FormWeight && r.IdleSince > 0 && n == 0:
		return "idle"
	case r.Setting == "CPUQuota": // whole percents only: measured
		return fmt.Sprintf("%d%%", n/10_000)
	case r.Form == systemd.FormMicros:
		return fmt.Sprintf("%dus", n)
	}
	return fmt.Sprint(n)
}

// isDelegated reads Delegate=: a boolean, or the controllers that are meant.
func isDelegated(text string) bool { return text != "" && text != "no" && text != "false" }

// startOnly knows what only a transient unit takes.
func startOnly(p pair) (lines []string, ok bool, err *dbus.Error) {
	switch v := p.value.(type) {
	case string:
		switch p.name {
		case "Slice":
			if unitname.TypeOf(v) != "slice" {
				return nil, false, invalid("Invalid unit name '%s'", v)
			}
			return []string{"Slice=" + v}, true, nil
		case "Description", "Type", "KillMode", "Restart", "CollectMode", "WorkingDirectory", "User", "Group",
			"DelegateSubgroup":
			return []string{p.name + "=" + v}, true, nil
		}
	case bool:
		if p.name == "Delegate" {
			return []string{"Delegate=" + map[bool]string{true: "yes", false: "no"}[v]}, true, nil
		}
	case []uint32:
		if p.name == "PIDs" {
			return []string{"PIDs=" + strings.Trim(fmt.Sprint(v), "[]")}, true, nil
		}
	case []string:
		switch p.name {
		case "Environment":
			return []string{"Environment=" + strings.Join(v, " ")}, true, nil
		case "DelegateControllers":
			return []string{"Delegate=" + strings.Join(v, " ")}, true, nil
		}
	case uint64:
		if p.name == "StartLimitIntervalUSec" || p.name == "TimeoutStartUSec" {
			return []string{strings.TrimSuffix(p.name, "USec") + "Sec=" + fmt.Sprintf("%dus", v)}, true, nil
		}
	case [][]any:
		if p.name == "ExecStart" {
			return []string{"ExecStart=" + v[0][0].(string)}, true, nil
		}
	}
	return nil, false, nil
}
