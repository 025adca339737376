package knob

import (
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob/format"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
)

// ioWeightRows are the files that hold the weight of a group on a disk. Under systemd those of cgroup v2 go by
// property. For BFQ a daemon-reload writes the default, with which it forgets the weights for devices
// (bfq_io_set_weight_legacy; measured on 252); and without a property systemd hands a service no io controller. On v1
// systemd knows no weight of BFQ's for a device, so the agent puts it back.
func ioWeightRows() []*Row {
	row := func(version int, file, since, via, none string, late bool) *Row {
		return &Row{
			Controller: "blkio", Version: version, File: file, Since: since, Late: late,
			Keys: []policy.Key{policy.KeyIOWeight}, Unit: "weight", PerDevice: true,
			Descends: true, Default: none, Up: 75, Down: 75, Risk: RiskSlow, via: via,
			form: format.DiskWeight{Number: format.Number{None: none, Unit: func(n int64) string {
				return format.Weight(n) + " of " + via
			}}}, Encode: encodeIOWeight(via, none),
		}
	}
	bfq := row(2, bfqFile, "5.4", policy.ViaBFQ, "default", true)
	iocost := row(2, "io.weight", "5.4", policy.ViaIOCost, "default", true)
	iocost.properties, bfq.properties = []string{"IODeviceWeight"}, []string{"IODeviceWeight"}
	return []*Row{
		row(1, "blkio.bfq.weight_device", "5.4", policy.ViaBFQ, "default", true),
		row(1, "blkio.weight_device", "", policy.ViaCFQ, "0", false),
		iocost,
		bfq,
	}
}

// weightFiles are the files that IODeviceWeight= writes, each for the disks that weigh so.
var weightFiles = []string{"io.weight", bfqFile}

const bfqFile = "io.bfq.weight"

// bfqByProperty is the release of systemd from which IODeviceWeight= is BFQ's too.
const bfqByProperty = 250

// propertyWeight is the weight of which systemd makes one of BFQ's (BFQ_WEIGHT of core/cgroup.c: up to 100 as it is,
// above that the rest of v2's scale squeezed into the rest of BFQ's).
func propertyWeight(bfq string) string {
	n, err := strconv.ParseInt(bfq, 10, 64)
	if err != nil {
		return ""
	}
	if n > 100 {
		n = 100 + (n-100)*11
	}
	return format.Decimal(n)
}

// weightsOf are the weights that a kernel's ways of holding them take: iocost has v2's own scale, BFQ and CFQ a tenth
// of it.
var weightsOf = map[string]struct{ tenth, least, most int64 }{
	policy.ViaIOCost: {1, 1, 10000},
	policy.ViaBFQ:    {10, 1, 1000},  // BFQ_MIN_WEIGHT, BFQ_MAX_WEIGHT
	policy.ViaCFQ:    {10, 10, 1000}, // CFQ_WEIGHT_LEGACY_MIN, _MAX
}

func encodeIOWeight(via, none string) func(Input) (string, bool, error) {
	scale := weightsOf[via]
	return func(in Input) (string, bool, error) {
		w, _, set := get[policy.Weight](in.Settings, policy.KeyIOWeight, in.On)
		switch {
		case !set:
			return "", false, nil
		case w == 0: // lifted
			return none, true, nil
		}
		return format.Decimal(min(max((int64(w)+scale.tenth/2)/scale.tenth, scale.least), scale.most)), true, nil
	}
}

// weighs says whether this host has what holds a row's weights; "" needs nothing.
func weighs(f *host.Facts, via string) bool {
	switch via {
	case policy.ViaIOCost:
		return f.IOCost
	case policy.ViaBFQ:
		return f.BFQ
	case policy.ViaCFQ:
		return slices.ContainsFunc(f.Devices, func(d blockdev.Device) bool {
			return slices.Contains(d.Schedulers,
				blockdev.CFQ)
		})
	}
	return true
}

// explainIOWeight says what could hold a weight on a disk of this host.
func explainIOWeight(f *host.Facts) Capability {
	const key = policy.KeyIOWeight
	h, ok := f.HierarchyOf("blkio")
	if !ok {
		return no(key, unmounted(f, "blkio"), "")
	}
	c := Capability{Key: key, Verdict: Yes, Hierarchy: h.ID}
	bfq := "blkio.bfq.weight_device"
	var ways []string
	if h.Version == 2 {
		bfq = "io.bfq.weight"
		if f.IOCost {
			c.Files, ways = append(c.Files, "io.weight"), append(ways, "iocost, on disks of which host.io has a model")
		}
	}
	if f.BFQ {
		c.Files, ways = append(c.Files, bfq), append(ways,
			"the scheduler BFQ, which takes the place of the one that a disk has")
	}
	if h.Version == 1 && weighs(f, policy.ViaCFQ) {
		c.Files, ways = append(c.Files, "blkio.weight_device"), append(ways, "the scheduler CFQ")
	}
	if len(ways) == 0 {
		return no(key, "this kernel has neither BFQ nor CFQ, nor iocost on cgroup v2", "")
	}
	c.Reason = "by " + strings.Join(ways, ", or ")
	return c
}

// Disk files are not of any group: they decide whether, and how, the weights of groups count on a disk. They stand in
// the top directory of the hierarchy that weighs, with a line for each device, and go back to what they were when no
// group asks for a weight any more.
const (
	CostQoS   = "io.cost.qos"
	CostModel = "io.cost.model"
)

// diskRows are the rows of these files, for whoever compares what they hold.
var diskRows = []*Row{
	{Controller: "blkio", File: CostQoS, Since: "5.4", PerDevice: true, Default: "enable=0",
		form: format.Parameters{Idle: "enable=0"}},
	{Controller: "blkio", File: CostModel, Since: "5.4", PerDevice: true, Default: "ctrl=auto",
		form: format.Parameters{Idle: "ctrl=auto"}},
	{Controller: "blkio", File: cgroup.QueueScheduler, PerDevice: true, form: format.Word{}},
	{Controller: "blkio", File: cgroup.QueueWriteBack, PerDevice: true, form: format.Word{}},
}

func init() {
	for _, r := range diskRows {
		r.Same, r.Loosens = r.form.Same, r.form.Loosens
	}
}

// DiskRow is the row of a file that concerns a disk; nil when there is none of that name.
func DiskRow(file string) *Row {
	if i := slices.IndexFunc(diskRows, func(r *Row) bool { return r.File == file }); i >= 0 {
		return diskRows[i]
	}
	return nil
}
