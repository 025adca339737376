package unitfile

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// property reads one setting of a unit into a group.
type property func(im *sliceImport, g *convert.Group, u *unitFile, a assignment)

// properties are the settings that a policy has a key for, but for lists and for those that need another one.
var properties = map[string]property{
	"CPUWeight": (*sliceImport).cpuWeight, "CPUShares": (*sliceImport).cpuShares, "CPUQuota": (*sliceImport).cpuQuota,
	"MemoryMin": memory(policy.KeyMemoryMin), "MemoryLow": memory(policy.KeyMemoryLow),
	"MemoryHigh": memory(policy.KeyMemoryHigh),
	"MemoryMax":  memory(policy.KeyMemoryMax), "MemoryLimit": (*sliceImport).memoryLimit,
	"MemorySwapMax": memory(policy.KeyMemorySwap),
	"TasksMax":      (*sliceImport).tasksMax, "IOWeight": (*sliceImport).ioWeight,
	"BlockIOWeight": (*sliceImport).blockIOWeight,
	"OOMPolicy":     (*sliceImport).oomPolicy, "OOMScoreAdjust": (*sliceImport).oomScore,
}

// deviceProperties are the lists of limits of devices, the newer name first.
var deviceProperties = []struct {
	name, older string
	key         policy.Key
	unit        string
}{
	{"IOReadBandwidthMax", "BlockIOReadBandwidth", policy.KeyIOReadBandwidth, "B/s"},
	{"IOWriteBandwidthMax", "BlockIOWriteBandwidth", policy.KeyIOWriteBandwidth, "B/s"},
	{"IOReadIOPSMax", "", policy.KeyIOReadIOPS, ""}, {"IOWriteIOPSMax", "", policy.KeyIOWriteIOPS, ""},
	{"IODeviceWeight", "BlockIODeviceWeight", policy.KeyIOWeight, ""},
}

// setProperties are the lists of CPUs and nodes.
var setProperties = []struct {
	name string
	key  policy.Key
}{{"AllowedCPUs", policy.KeyCPUCPUs}, {"AllowedMemoryNodes", policy.KeyMemoryNUMA}}

// accounting are the switches that bulkhead sets by itself where a limit needs them.
func isAccounting(name string) bool { return strings.HasSuffix(name, "Accounting") }

// limits reads what the files of a unit limit.
func (im *sliceImport) limits(g *convert.Group, u *unitFile, section string) {
	seen := map[string]bool{}
	for _, a := range u.lines {
		switch {
		case a.section != section:
			if resource(a.name) && !strings.HasPrefix(a.section, "X-") {
				im.Leave(a.at, "write it below ["+section+"]", a.what(),
					"it stands in [%s], where systemd does not read it", convert.Clean(a.section))
			}
		case !seen[a.name]:
			seen[a.name] = true
			im.setting(g, u, a, section)
		}
	}
	im.devices(g, u)
	im.sets(g, u)
}

// setting reads one setting of a unit: of several lines the one that counts.
func (im *sliceImport) setting(g *convert.Group, u *unitFile, a assignment, section string) {
	last, counts := u.last(a.name)
	_, left := leftProperties[a.name]
	ofProcess, process := processProperties[a.name]
	switch read := properties[a.name]; {
	case section == "Slice" && !sliceSetting(a.name):
		im.Leave(a.at, "see systemd.resource-control(5)", a.what(),
			"a slice has no such setting, and systemd takes no notice of it")
	case !counts:
	case read != nil:
		said, shares := im.Said()+len(g.Settings), g.Shares
		if read(im, g, u, last); said == im.Said()+len(g.Settings) && shares == g.Shares {
			im.idle(last)
		}
	case left:
		im.leave(u, last)
	case process && section == "Service":
		im.Leave(last.at, ofProcess[1], last.what(), "%s", ofProcess[0])
	case a.name == "CPUQuotaPeriodSec":
		if _, limited := u.last("CPUQuota"); !limited {
			im.Leave(last.at, "", last.what(), "a period without a quota limits nothing")
		}
	case isAccounting(a.name):
		im.Note("accounting is not carried over: bulkhead switches on what its limits need")
	}
}

// leave reports a setting that has no place in a policy; of a list each of its entries.
func (im *sliceImport) leave(u *unitFile, last assignment) {
	all, why := []assignment{last}, leftProperties[last.name]
	if slices.Contains(leftLists, last.name) {
		all = u.all(last.name)
	}
	for _, a := range all {
		if a.asks() {
			im.Leave(a.at, why[1], a.what(), "%s", why[0])
		} else {
			im.idle(a)
		}
	}
}

// idle notes a setting that has the value that every unit has.
func (im *sliceImport) idle(a assignment) {
	im.Note("%s is what every unit has, and is left out", a.what())
}

// resource says whether a name is a setting of resource control.
func resource(name string) bool {
	_, left := leftProperties[name]
	return properties[name] != nil && name != "OOMPolicy" && name != "OOMScoreAdjust" || left && name != "Delegate" ||
		isList(name)
}

func isList(name string) bool {
	for _, p := range deviceProperties {
		if name == p.name || name == p.older && name != "" {
			return true
		}
	}
	return name == "AllowedCPUs" || name == "AllowedMemoryNodes"
}

// sliceSetting says whether a slice has a setting of that name.
func sliceSetting(name string) bool {
	return resource(name) || isAccounting(name) || name == "CPUQuotaPeriodSec" || name == "Slice" || name == "Delegate"
}

func (im *sliceImport) integer(a assignment, lowest, highest int64) (int64, bool) {
	n, err := strconv.ParseInt(a.value, 10, 64)
	switch {
	case err != nil:
		im.Fail(a.at, fmt.Sprintf("write a whole number from %d to %d", lowest, highest), "%s=: %q is not a number",
			a.name, convert.Clean(a.value))
	case n < lowest || n > highest:
		im.Fail(a.at, "", "%s=: %d is outside %d to %d", a.name, n, lowest, highest)
	default:
		return n, true
	}
	return 0, false
}

func (im *sliceImport) cpuWeight(g *convert.Group, u *unitFile, a assignment) {
	if a.value == "idle" {
		im.Set(g, policy.KeyCPUIdle, "", "true", a.at, a.what())
		return
	}
	n, ok := im.integer(a, 1, convert.MaxWeight)
	if !ok || !im.Set(g, policy.KeyCPUWeight, "", strconv.FormatInt(n, 10), a.at, a.what()) {
		return
	}
	if older, both := u.last("CPUShares"); both {
		if shares, ok := im.integer(older, convert.MinShares, convert.MaxShares); ok {
			im.both = append(im.both, twoWeights{u.name, n, shares, older.at, older.what()})
		}
	}
}

func (im *sliceImport) cpuShares(g *convert.Group, u *unitFile, a assignment) {
	if newer, both := u.last("CPUWeight"); both {
		im.Note("%s gives way to %s, the newer one", a.what(), newer.what())
		return
	}
	if n, ok := im.integer(a, convert.MinShares, convert.MaxShares); ok {
		g.Shares = &convert.Share{N: n, At: a.at, What: a.what()}
	}
}

func (im *sliceImport) cpuQuota(g *convert.Group, u *unitFile, a assignment) {
	number, percent := strings.CutSuffix(a.value, "%")
	if _, err := strconv.ParseFloat(number, 64); err != nil || !percent {
		im.Fail(a.at, "write a percentage of one CPU: CPUQuota=150%", "CPUQuota=: %q is not a percentage",
			convert.Clean(a.value))
		return
	}
	if !im.Set(g, policy.KeyCPULimit, "", a.value, a.at, a.what()) {
		return
	}
	period, there := u.last("CPUQuotaPeriodSec")
	if !there {
		return
	}
	us, ok := timeSpan(period.value)
	switch {
	case !ok:
		im.Fail(period.at, "write a time: 10ms", "CPUQuotaPeriodSec=: %q is not a time", convert.Clean(period.value))
	case us != convert.DefaultPeriod:
		fit := min(max(us, convert.MinPeriod), convert.MaxPeriod) // as systemd does
		if im.Set(g, policy.KeyCPUPeriod, "", convert.Micros(fit), period.at, period.what()) && fit != us {
			im.Change(period.at, period.what(), "is %s, as systemd makes it", convert.Micros(fit))
		}
	}
}

// timeSpan reads a time of one unit in µs; a number alone is seconds.
func timeSpan(text string) (us int64, ok bool) {
	for _, unit := range []struct {
		name string
		us   float64
	}{{"us", 1}, {"usec", 1}, {"µs", 1}, {"ms", 1e3}, {"msec", 1e3}, {"s", 1e6}, {"sec", 1e6}, {"", 1e6}} {
		number, fits := strings.CutSuffix(text, unit.name)
		if n, err := strconv.ParseFloat(strings.TrimSpace(number), 64); fits && err == nil && n > 0 &&
			n*unit.us < 1<<53 {
			return int64(math.Round(n * unit.us)), true
		}
	}
	return 0, false
}

// memory reads an amount of memory: bytes, with K, M, G or T by 1024, or a percentage.
func memory(key policy.Key) property {
	return func(im *sliceImport, g *convert.Group, _ *unitFile, a assignment) { im.memory(g, key, a) }
}

const pageSize = 4096

func (im *sliceImport) memory(g *convert.Group, key policy.Key, a assignment) {
	text := a.value
	switch {
	case text == "infinity" && key != policy.KeyMemoryMin && key != policy.KeyMemoryLow:
		return
	case text == "infinity":
		im.Leave(a.at, "write an amount", a.what(), "protection of all the memory there is")
		return
	case strings.HasSuffix(text, "%"):
		if n, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64); err != nil || n < 0 || n > 100 {
			im.Fail(a.at, "write a percentage of the host's memory", "%s=: %q is not a percentage", a.name,
				convert.Clean(text))
			return
		}
		if text == "0%" {
			text = "0"
		}
	default:
		n, ok := systemd.ParseBytes(text, 0)
		if !ok {
			im.Fail(a.at, "systemd takes bytes, and K, M, G and T for powers of 1024: 512M",
				"%s=: %q is not an amount of memory", a.name, convert.Clean(text))
			return
		}
		if rest := n % pageSize; n < pageSize && n > 0 {
			im.Change(a.at, a.what(), "is %d: the kernel counts whole pages, and %s is less than one", n-rest,
				policy.Bytes(n))
			n = 0
		}
		text = policy.Bytes(n).String()
	}
	protects := key == policy.KeyMemoryMin || key == policy.KeyMemoryLow
	switch {
	case text == "0" && protects:
	case text == "0" && key != policy.KeyMemorySwap:
		im.Leave(a.at, "", a.what(), "a limit of nothing would end every process")
	default:
		im.Set(g, key, "", text, a.at, a.what())
	}
}

func (im *sliceImport) memoryLimit(g *convert.Group, u *unitFile, a assignment) {
	if newer, both := u.last("MemoryMax"); both {
		im.Change(a.at, a.what(), "gives way to %s, the newer one", newer.what())
		return
	}
	im.memory(g, policy.KeyMemoryMax, a)
	for _, name := range []string{"MemoryMin", "MemoryLow", "MemoryHigh", "MemorySwapMax"} {
		if newer, both := u.last(name); both && convert.HasSetting(g, policy.KeyMemoryMax) {
			im.Change(a.at, a.what(), "is memory.max; systemd itself takes no notice of it on cgroup v2 beside %s",
				newer.what())
			return
		}
	}
}

func (im *sliceImport) tasksMax(g *convert.Group, _ *unitFile, a assignment) {
	switch {
	case a.value == "infinity":
	case strings.HasSuffix(a.value, "%"):
		im.Leave(a.at, "write a number", a.what(), "a policy has no percentages of tasks")
	default:
		if n, ok := im.integer(a, 1, math.MaxInt64); ok {
			im.Set(g, policy.KeyTasks, "", strconv.FormatInt(min(n, 1<<22), 10), a.at, a.what())
		}
	}
}

func (im *sliceImport) ioWeight(g *convert.Group, _ *unitFile, a assignment) {
	if n, ok := im.integer(a, 1, convert.MaxWeight); ok {
		im.diskWeight(g, n, a)
	}
}

func (im *sliceImport) blockIOWeight(g *convert.Group, u *unitFile, a assignment) {
	if newer, both := u.last("IOWeight"); both {
		im.Change(a.at, a.what(), "gives way to %s, the newer one", newer.what())
		return
	}
	if n, ok := im.integer(a, 10, 1000); ok { // 500 is what every unit has, and 100 on the newer scale
		im.diskWeight(g, max((n*100+250)/500, 1), a)
	}
}

// diskWeight takes a weight over as systemd means it: it makes no disk weigh.
func (im *sliceImport) diskWeight(g *convert.Group, n int64, a assignment) {
	if im.Set(g, policy.KeyIOWeight, "", strconv.FormatInt(n, 10), a.at, a.what()) {
		im.Change(a.at, a.what(), "holds on disks that weigh already (BFQ, iocost) and changes none, as in systemd; "+
			"`on: DISK` beside it has plan choose what weighs there")
	}
}

func (im *sliceImport) oomPolicy(g *convert.Group, _ *unitFile, a assignment) {
	switch a.value {
	case "kill":
		im.Set(g, policy.KeyMemoryOOM, "", "kill-group", a.at, a.what())
	case "stop":
		im.Leave(a.at, "leave it in the unit", a.what(), "systemd stops the service by itself")
	case "continue":
	default:
		im.Fail(a.at, "write continue, stop or kill", "OOMPolicy= cannot be %q", convert.Clean(a.value))
	}
}

func (im *sliceImport) oomScore(g *convert.Group, _ *unitFile, a assignment) {
	if n, ok := im.integer(a, -1000, 1000); ok {
		im.Set(g, policy.KeyOOMScoreAdj, "", strconv.FormatInt(n, 10), a.at, a.what())
	}
}

// devices reads the lists of limits of devices.
func (im *sliceImport) devices(g *convert.Group, u *unitFile) {
	for _, p := range deviceProperties {
		list := u.all(p.name)
		if older := u.all(p.older); p.older != "" && len(older) > 0 {
			if len(list) > 0 {
				im.Change(older[0].at, older[0].what(), "gives way to %s, the newer one", p.name)
			} else {
				list = older
			}
		}
		for _, a := range list {
			im.device(g, a, p.key, p.unit)
			if p.key == policy.KeyIOWeight {
				im.Change(a.at, a.what(), "names a disk, so that plan has the disk weigh (BFQ or iocost) where it "+
					"does not yet; systemd changes no disk")
			}
		}
	}
}

func (im *sliceImport) device(g *convert.Group, a assignment, key policy.Key, unit string) {
	target, number := splitTarget(a.value)
	n, ok := decimalBytes(number)
	switch {
	case number == "infinity":
		return
	case target == "" || !ok || n < 1:
		im.Fail(a.at, "write a device or a path, and a number with K, M or G for powers of 1000: /dev/sda 50M",
			"%s=: %q is not a limit of a device", a.name, convert.Clean(a.value))
		return
	}
	if device, is := strings.CutPrefix(target, "/dev/block/"); is && convert.IsDevice(device) {
		target = device
	}
	if a.name == "BlockIODeviceWeight" { // 500 is what every unit has, and 100 on the newer scale
		n = max((n*100+250)/500, 1)
	}
	im.Set(g, key, target, strconv.FormatInt(n, 10)+unit, a.at, a.what())
}

// splitTarget splits "/dev/sda 50M", where the path may stand in quotes.
func splitTarget(value string) (target, number string) {
	if rest, quoted := strings.CutPrefix(value, `"`); quoted {
		target, number, _ = strings.Cut(rest, `" `)
		return strings.NewReplacer(`\\`, `\`, `\"`, `"`, "%%", "%").Replace(target), strings.TrimSpace(number)
	}
	at := strings.LastIndexAny(value, " \t")
	if at < 0 {
		return "", value
	}
	return strings.ReplaceAll(strings.TrimSpace(value[:at]), "%%", "%"), value[at+1:]
}

// decimalBytes reads a number with K, M, G or T for powers of 1000, as systemd has it for devices.
func decimalBytes(text string) (int64, bool) {
	factor := 1.0
	if i := strings.IndexAny(text, "KMGT"); i > 0 && i == len(text)-1 {
		factor = math.Pow(1000, float64(1+strings.IndexByte("KMGT", text[i])))
		text = text[:i]
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && factor == 1 {
		return n, true
	}
	n, err := strconv.ParseFloat(text, 64)
	return int64(n * factor), err == nil && n >= 0 && n*factor < 1<<62
}

// sets reads the lists of CPUs and nodes, which add up.
func (im *sliceImport) sets(g *convert.Group, u *unitFile) {
	for _, p := range setProperties {
		var all idset.Set
		list := u.all(p.name)
		for _, a := range list {
			set, err := idset.Parse(
				strings.Join(strings.FieldsFunc(a.value,
					func(r rune) bool { return r == ' ' || r == ',' || r == '\t' }), ","))
			if err != nil {
				im.Fail(a.at, `write a list such as "0-3 8"`, "%s=: %q is not a list of numbers", a.name,
					convert.Clean(a.value))
				continue
			}
			all = all.Union(set)
		}
		if len(all) > 0 {
			im.Set(g, p.key, "", all.String(), list[len(list)-1].at, list[len(list)-1].what())
		}
	}
}
