package knob

import (
	"slices"
	"strconv"

	"bulkhead/internal/host"
	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

// FileClassID is the file of v1 by which the kernel tells the packets of a group's sockets.
const FileClassID = "net_cls.classid"

// networkRows are not limits by themselves: the classes on the interfaces are.
func networkRows() []*Row {
	return []*Row{{
		Controller: "net_cls", Version: 1, File: FileClassID, Keys: classKeys,
		Unit: "class of traffic control, as major × 65536 + minor", Inherits: true, Default: "0", Up: 60, Down: 60,
		form:   format.Number{Unit: classID},
		serves: []policy.Key{}, needed: wantsClass, Encode: encodeClass,
	}}
}

// ClassID is what FileClassID holds, as tc(8) writes a class; "" has no class either.
func ClassID(text string) string {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return "none"
	}
	return classID(n)
}

func classID(n int64) string {
	if n == 0 {
		return "none"
	}
	return strconv.FormatInt(n>>16, 16) + ":" + strconv.FormatInt(n&0xffff, 16)
}

// Tells gives the limit on an interface for which the row tells the group's packets; false for every other row.
func (r *Row) Tells(s policy.Settings) (policy.Setting, bool) {
	if r.File != FileClassID {
		return policy.Setting{}, false
	}
	return toldByClass(s)
}

// toldByClass gives the first limit for which packets that leave are to be told by the group's sockets.
func toldByClass(s policy.Settings) (policy.Setting, bool) {
	for _, one := range s {
		if slices.Contains(classKeys, one.Key) && limits(one) && one.Network.Sort != policy.SortPorts {
			return one, true
		}
	}
	return policy.Setting{}, false
}

func wantsClass(s policy.Settings) bool {
	_, ok := toldByClass(s)
	return ok
}

var classKeys = []policy.Key{policy.KeyNetworkEgressMax, policy.KeyNetworkEgressMin}

func encodeClass(in Input) (string, bool, error) {
	if in.Class == 0 || !wantsClass(in.Settings) {
		return "", false, nil
	}
	return strconv.FormatUint(uint64(in.Class), 10), true, nil
}

// SortsByNetCls says whether packets are told apart by v1's net_cls: where BPF programs on cgroup2 directories cannot
// do it, as there is no such hierarchy, as the kernel is older than 5.0, or as the kernel does not see whose a socket
// is.
func SortsByNetCls(f *host.Facts) bool {
	h, ok := f.HierarchyOf("net_cls")
	if !ok || h.Version != 1 || h.ReadOnly {
		return false
	}
	return !slices.ContainsFunc(f.Hierarchies, func(h host.Hierarchy) bool { return h.Version == 2 && !h.ReadOnly }) ||
		!f.Kernel.Since("5.0") || f.BlindedBy != ""
}
