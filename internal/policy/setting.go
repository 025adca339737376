package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Setting is one limit that somebody asked for.
type Setting struct {
	Key Key
	// Io, network: the target as written ("" is every device); memory.huge: the page size as the kernel names it.
	On string
	// Io: "major:minor" of the device the target resolved to; network: the interface's name; set by Resolve.
	Dev   string
	Layer Layer  // io: which layer of the storage below the target is limited
	Why   string // io: how the device was chosen, when there was a choice; set by Resolve
	Split Split  // io: how those that share the limit share it
	// Whole is the limit of which Value is an even part, when several devices share it, and Parts how many do; set by
	// Resolve.
	Whole Value
	Parts int
	// Via is what holds a weight on the device: ViaIOCost, ViaBFQ or ViaCFQ; set by Resolve.
	Via string
	// Lost says why the target was not found: Dev is empty then, and whoever has the limit in force leaves it as it is;
	// set by Resolve.
	Lost string
	// Network is how a limit on an interface is put in force.
	Network NetworkPart
	Value   Value
	Raw     string // as written, when it says more than Value ("4%", "numa 0"); else ""
	Pos     Pos
	From    string // who asks: "group", "class standard", "role database", "override 3", "host.reserve", …

	OnPos Pos // where the target is written, for problems of the target
}

// String is the setting as `set` takes it: "io.read.bandwidth=50MB/s on /data".
func (s Setting) String() string {
	text := string(s.Key) + "=" + s.Value.String()
	if s.On != "" {
		text += " on " + s.On
	}
	return text
}

// Layer says which layer of storage an io limit is for.
type Layer string

// The layers that a policy may insist on; "" is LayerAuto.
const (
	LayerAuto Layer = "auto" // the top device where a filesystem has one to itself, else the disks
	LayerTop  Layer = "top"
	LayerLeaf Layer = "leaf" // the disks at the bottom, which share the limit
)

// Split says how devices, and on cgroup v1 directories, share an io limit.
type Split string

// The ways to share a limit; "" is SplitByUse.
const (
	SplitEven  Split = "even"
	SplitByUse Split = "by-use" // begins evenly; the agent goes on by what is read and written
)

// Equal says whether two settings ask for the same. Who asks, and where it is written, does not count.
func (s Setting) Equal(o Setting) bool {
	return s.Key == o.Key && s.place() == o.place() && SameValue(s.Value, o.Value) && s.Even() == o.Even() &&
		s.Network == o.Network
}

// Even says whether a limit is shared evenly, whatever is used.
func (s Setting) Even() bool { return s.Split == SplitEven }

// FromRole says whether nobody wrote the setting, and it is a default of the group's role.
func (s Setting) FromRole() bool { return strings.HasPrefix(s.From, "role ") }

// place is what a setting is for: its device when that is known, else its target as written.
func (s Setting) place() string { return cmp.Or(s.Dev, s.On) }

// jsonSetting is the JSON form of a Setting: the value as a person writes it.
type jsonSetting struct {
	Key   Key          `json:"key"`
	On    string       `json:"on,omitempty"`
	Dev   string       `json:"dev,omitempty"`
	Layer Layer        `json:"layer,omitempty"`
	Why   string       `json:"why,omitempty"`
	Split Split        `json:"split,omitempty"`
	Whole string       `json:"whole,omitempty"`
	Parts int          `json:"parts,omitempty"`
	Via   string       `json:"via,omitempty"`
	Lost  string       `json:"lost,omitempty"`
	Net   *NetworkPart `json:"network,omitempty"`
	Value string       `json:"value"`
	Raw   string       `json:"raw,omitempty"`
	Pos   *Pos         `json:"pos,omitempty"`
	From  string       `json:"from,omitempty"`
}

// MarshalJSON writes the value in the units of the file: {"key":"cpu.limit","value":"1.5",…}.
func (s Setting) MarshalJSON() ([]byte, error) {
	j := jsonSetting{Key: s.Key, On: s.On, Dev: s.Dev, Layer: s.Layer, Why: s.Why, Split: s.Split, Parts: s.Parts,
		Via: s.Via, Lost: s.Lost, Raw: s.Raw, From: s.From}
	if s.Value != nil {
		j.Value = s.Value.String()
	}
	if s.Whole != nil {
		j.Whole = s.Whole.String()
	}
	if s.Pos != (Pos{}) {
		j.Pos = &s.Pos
	}
	if s.Network != (NetworkPart{}) {
		j.Net = &s.Network
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Setting) UnmarshalJSON(data []byte) error {
	var j jsonSetting
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	l := LimitOf(j.Key)
	if l == nil {
		return fmt.Errorf("read setting %q: unknown key", j.Key)
	}
	value, wrong := l.Parse(j.Value)
	if wrong != nil {
		return fmt.Errorf("read setting %s %q: %s", j.Key, j.Value, wrong.Msg)
	}
	*s = Setting{Key: j.Key, On: j.On, Dev: j.Dev, Layer: j.Layer, Why: j.Why, Split: j.Split, Parts: j.Parts,
		Via: j.Via, Lost: j.Lost, Value: value, Raw: j.Raw, From: j.From}
	if j.Whole != "" {
		if s.Whole, wrong = l.Parse(j.Whole); wrong != nil {
			return fmt.Errorf("read setting %s %q: %s", j.Key, j.Whole, wrong.Msg)
		}
	}
	if j.Pos != nil {
		s.Pos = *j.Pos
	}
	if j.Net != nil {
		s.Network = *j.Net
	}
	return nil
}

// Settings holds at most one Setting per (Key, On/Dev), in the order of the keys.
type Settings []Setting

// Get finds the setting of a key. on is the target as written or the device ("8:16") of an io key,
// the page size ("2MB") of memory.huge, and "" for every other key.
func (ss Settings) Get(key Key, on string) (Setting, bool) {
	for _, s := range ss {
		if s.Key == key && (s.On == on || (s.Dev != "" && s.Dev == on)) {
			return s, true
		}
	}
	return Setting{}, false
}

// All gives the settings of one key: one per device or page size.
func (ss Settings) All(key Key) Settings {
	var found Settings
	for _, s := range ss {
		if s.Key == key {
			found = append(found, s)
		}
	}
	return found
}

// With gives the settings with one more, which replaces the one for the same key and place. The
// receiver is left alone.
func (ss Settings) With(s Setting) Settings {
	next := slices.DeleteFunc(slices.Clone(ss), func(o Setting) bool {
		return o.Key == s.Key && o.place() == s.place()
	})
	next = append(next, s)
	next.Sort()
	return next
}

// Equal says whether two lists ask for the same, whoever asks.
func (ss Settings) Equal(o Settings) bool { return slices.EqualFunc(ss, o, Setting.Equal) }

// Sort puts settings into the order of the keys, then of their places.
func (ss Settings) Sort() {
	slices.SortStableFunc(ss, func(a, b Setting) int {
		return cmp.Or(cmp.Compare(keyRank(a.Key), keyRank(b.Key)), strings.Compare(a.place(), b.place()))
	})
}

// Over lays settings over weaker ones: what both ask for, the receiver decides. CPUs and the nodes
// whose CPUs to use are two ways to ask for the same, so either takes the other's place.
func (ss Settings) Over(weaker Settings) Settings {
	merged := slices.Clone(ss)
	asks := func(key Key) bool { return len(ss.All(key)) > 0 }
	for _, s := range weaker {
		switch {
		case s.Key == KeyCPUCPUs && asks(KeyCPUNUMA), s.Key == KeyCPUNUMA && asks(KeyCPUCPUs):
			continue
		}
		if _, taken := ss.Get(s.Key, s.On); !taken {
			merged = append(merged, s)
		}
	}
	merged.Sort()
	return merged
}

// TargetPos is where the target of an io limit is written.
func (s Setting) TargetPos() Pos { return cmp.Or(s.OnPos, s.Pos) }

// Sort says how the packets of a group are told from others.
type Sort string

// The ways to tell packets apart; "" is SortAuto.
const (
	SortAuto  Sort = "auto"  // by the group's sockets where the kernel can, else by ports
	SortPorts Sort = "ports" // by ports in both directions: holds connections, too, that were open before the group
)

// Sorts are all ways to tell packets apart, as a policy writes them.
var Sorts = []string{string(SortAuto), string(SortPorts)}

// NetworkPart is how the limits of a group on one interface are put in force.
type NetworkPart struct {
	Replace bool   `json:"replace,omitempty"` // foreign qdiscs make room, and come back
	Sort    Sort   `json:"by,omitempty"`
	Ports   string `json:"ports,omitempty"` // "3306,33060": that the group's processes listen on, beside those found
}

// PortList is the ports of the part.
func (n NetworkPart) PortList() []uint16 {
	var all []uint16
	for text := range strings.SplitSeq(n.Ports, ",") {
		if port, err := strconv.ParseUint(text, 10, 16); err == nil {
			all = append(all, uint16(port))
		}
	}
	return all
}

// Settle finishes the settings of one block: it says who asks for them, drops what `numa:` asks where
// the same block names the CPUs or nodes itself, and puts the rest in order.
func (ss Settings) Settle(who string) Settings {
	short := func(s Setting) bool { return strings.HasPrefix(s.Raw, "numa ") }
	settled := slices.DeleteFunc(slices.Clone(ss), func(s Setting) bool {
		return short(s) && slices.ContainsFunc(ss, func(o Setting) bool {
			return !short(o) && (o.Key == s.Key || (s.Key == KeyCPUNUMA && o.Key == KeyCPUCPUs))
		})
	})
	for i := range settled {
		settled[i].From = who
	}
	settled.Sort()
	return settled
}
