// Package hostpart reads the blocks of a policy that are about the host as a whole: `host:` with its reserve, disks and
// interfaces, and `agent:`. Form and AgentForm are its two entries.
package hostpart

import (
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// Form is `host:`.
func Form() yamlform.Form[policy.HostPart] {
	reserve, diskGroup, ceiling, link := reserveForm(), diskGroupForm(), ceilingForm(), linkForm()
	return yamlform.Form[policy.HostPart]{
		Name: "host",
		Keys: []yamlform.FormKey[policy.HostPart]{
			{
				Name: "root",
				Doc: "Name of a root group of bulkhead's own above all groups, for those who want one. Without it " +
					"outermost " +
					"groups stand side by side at the top of each hierarchy. One that bulkhead did not make is " +
					"refused.",
				Schema: policy.JSONSchema{
					"type": "string", "pattern": policy.NamePattern,
					"not": policy.JSONSchema{"pattern": policy.ReservedRoot},
				},
				Read: func(v yamlform.Item, h *policy.HostPart) {
					h.RootPos = v.Pos()
					name, ok := v.Text()
					if ok && !policy.ValidName(name) {
						v.Fail(policy.NameHint, "host.root: %q is not a name", name)
					} else if why := policy.ReservedRootName(name); ok && why != "" {
						v.Fail("choose another name", "host.root: %s", why)
					}
					h.Root = name
				},
			},
			{
				Name: "weight", Doc: "CPU weight of the root group against the rest of the system, 1 to 10000; needs " +
					"root.",
				Schema: policy.LimitOf(policy.KeyCPUWeight).Schema(),
				Read: func(v yamlform.Item, h *policy.HostPart) {
					if n, ok := v.Number("a weight", 1, 10000); ok {
						h.Weight = policy.Weight(n)
					}
				},
			},
			othersField(),
			{
				Name: "reserve", Doc: "What root, sshd and the agent keep.", Schema: reserve.Schema(),
				Read: func(v yamlform.Item, h *policy.HostPart) {
					h.Reserve.Pos = v.Pos()
					reserve.Read(v, "host.reserve.", &h.Reserve)
				},
			},
			{
				Name: "io", Doc: "Known ceilings of devices: io limits may be a percentage of them.",
				Schema: yamlform.ListOf(ceiling.Schema()),
				Read:   func(v yamlform.Item, h *policy.HostPart) { h.IO = readCeilings(v, ceiling) },
			},
			{
				Name: "asm", Doc: "Disks of Oracle ASM disk groups, where their headers cannot tell.",
				Schema: yamlform.ListOf(diskGroup.Schema()),
				Read:   func(v yamlform.Item, h *policy.HostPart) { h.ASM = readDiskGroups(v, diskGroup) },
			},
			{
				Name:   "network",
				Doc:    "What is known of interfaces: what their link carries, and whom they must keep reaching.",
				Schema: yamlform.ListOf(link.Schema()),
				Read:   func(v yamlform.Item, h *policy.HostPart) { h.Network = readNetworkLinks(v, link) },
			},
			reclaimField(),
			historyField(),
			tuneField(),
		},
	}
}

// reserveForm is `host.reserve:`.
func reserveForm() yamlform.Form[policy.Reserve] {
	cpu := &policy.Limit{Key: "host.reserve.cpu", Unit: policy.CoresUnit, Zero: true}
	memory := &policy.Limit{Key: "host.reserve.memory", Unit: policy.SizeUnit(true), Zero: true}
	return yamlform.Form[policy.Reserve]{
		Name: "host.reserve",
		Keys: []yamlform.FormKey[policy.Reserve]{
			{
				Name: "cpu", Doc: "Cores that the groups together leave alone.", Schema: cpu.Schema(),
				Read: func(v yamlform.Item, r *policy.Reserve) {
					r.CPUPos = v.Pos()
					if s, ok := v.Limit(cpu); ok {
						r.CPU = s.Value.(policy.Cores)
					}
				},
			},
			{
				Name: "memory", Doc: "Memory that the groups together leave alone.", Schema: memory.Schema(),
				Read: func(v yamlform.Item, r *policy.Reserve) {
					r.MemoryPos = v.Pos()
					if s, ok := v.Limit(memory); ok {
						r.Memory = s.Value
					}
				},
			},
			reserveNetworkField(),
		},
	}
}

// reserveNetworkField is `host.reserve.network`.
func reserveNetworkField() yamlform.FormKey[policy.Reserve] {
	l := &policy.Limit{Key: "host.reserve.network", Unit: policy.BitRateUnit, Zero: true}
	return yamlform.FormKey[policy.Reserve]{
		Name: "network", Doc: "Bandwidth of each limited interface that traffic of no group keeps: your own way in.",
		Schema: l.Schema(),
		Read: func(v yamlform.Item, r *policy.Reserve) {
			r.NetworkPos = v.Pos()
			if s, ok := v.Limit(l); ok {
				r.Network = s.Value.(policy.BitRate)
			}
		},
	}
}

// AgentForm is `agent:`.
func AgentForm() yamlform.Form[policy.AgentPart] {
	return yamlform.Form[policy.AgentPart]{
		Name: "agent",
		Keys: []yamlform.FormKey[policy.AgentPart]{
			{
				Name: "on_conflict",
				Doc: "What to do when somebody else changes a limit: put it right, leave it, or leave it and " +
					"call that an error.", Schema: policy.JSONSchema{"enum": []string{"enforce", "yield", "alert"},
					"default": "enforce"},
				Read: func(v yamlform.Item, a *policy.AgentPart) {
					word, _ := v.Word(string(policy.ConflictEnforce), string(policy.ConflictYield),
						string(policy.ConflictAlert))
					a.OnConflict = policy.OnConflict(word)
				},
			},
			{
				Name: "read",
				Doc: "Who beside root may ask the agent for status and history: nobody, who owns a group, or " +
					"every user of this host.", Schema: policy.JSONSchema{"enum": []string{"root", "owners",
					"everyone"}, "default": "owners"},
				Read: func(v yamlform.Item, a *policy.AgentPart) {
					word, _ := v.Word(string(policy.ReadRoot), string(policy.ReadOwners), string(policy.ReadEveryone))
					a.Read = policy.Readers(word)
				},
			},
			{
				Name: "fast_moves",
				Doc: "Switch the kernel to faster moves of processes (favordynmods, kernel 6.0). Kernel 6.18 " +
					"keeps a part of it until the next boot.",
				Schema: policy.JSONSchema{"enum": []string{"off", "on"}, "default": "off"},
				Read: func(v yamlform.Item, a *policy.AgentPart) {
					// YAML 1.1 readers take off for false; this file is YAML 1.2, where it is a word.
					word, _ := v.Word("off", "on")
					a.FastMoves, a.FastMovesPos = word == "on", v.Pos()
				},
			},
			recordField(),
		},
	}
}

// The bounds on agent.record: a few segments, and what a file system of a host has.
const (
	smallestRecord = policy.Bytes(8 << 20)
	largestRecord  = policy.Bytes(1 << 40)
)

// recordField is `agent: {record: {size: 256MiB, age: 30d}}`.
func recordField() yamlform.FormKey[policy.AgentPart] {
	size := &policy.Limit{Key: "agent.record.size", Unit: policy.SizeUnit(false), Zero: true}
	record := yamlform.Form[policy.Record]{
		Name: "agent.record",
		Keys: []yamlform.FormKey[policy.Record]{
			{
				Name:   "size",
				Doc:    "How many bytes the record may have, 8MiB to 1TiB; the oldest goes first. 0: nothing is kept.",
				Schema: size.Schema(),
				Read: func(v yamlform.Item, r *policy.Record) {
					s, ok := v.Limit(size)
					if !ok {
						return
					}
					switch r.Size = s.Value.(policy.Bytes); {
					case r.Size == 0:
						r.Off = true
					case r.Size < smallestRecord || r.Size > largestRecord:
						v.Fail("write a size, as 256MiB", "agent.record.size: %s is not 8 MiB to 1 TiB", r.Size)
					}
				},
			},
			ageField("agent.record.age", "How old it may become", "30d",
				func(r *policy.Record) *time.Duration { return &r.Age }),
		},
	}
	return yamlform.FormKey[policy.AgentPart]{
		Name: "record", Doc: "How much is kept of what the agent samples: 256MiB and 30d unless named.",
		Schema: record.Schema(),
		Read:   func(v yamlform.Item, a *policy.AgentPart) { record.Read(v, "agent.record.", &a.Record) },
	}
}

// ageField is a key "age" of a form, between a day and a hundred years.
func ageField[T any](key, doc, example string, of func(*T) *time.Duration) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{
		Name:   "age",
		Doc:    doc + ", in days or hours: " + example + ", 48h; at least a day.",
		Schema: policy.JSONSchema{"type": "string", "pattern": `^[0-9]+(d|h)$`, "examples": []any{example}},
		Read: func(v yamlform.Item, to *T) {
			text, ok := v.Text()
			if !ok {
				return
			}
			age, ok := daysOrHours(text)
			if !ok || age < shortestAge || age > longestAge {
				v.Fail("write days or hours: "+example+", 48h", key+": %q is no age between a day and a hundred years",
					text)
				return
			}
			*of(to) = age
		},
	}
}

// The bounds on host.reclaim: who changes the host waits for it, and others for them.
const (
	shortestReclaim = time.Second
	longestReclaim  = 10 * time.Minute
)

// reclaimField is `host: {reclaim: 30s}`.
func reclaimField() yamlform.FormKey[policy.HostPart] {
	return yamlform.FormKey[policy.HostPart]{
		Name: "reclaim",
		Doc: "How long the memory in use of a group may take to fall below a lower limit, 1s to 10m; else " +
			"nothing is changed.",
		Schema: policy.JSONSchema{"type": "string", "default": "30s", "examples": []any{"30s", "2m"}},
		Read: func(v yamlform.Item, h *policy.HostPart) {
			const hint = "write seconds or minutes: 30s, 2m"
			text, ok := v.Text()
			if !ok {
				return
			}
			switch length, err := time.ParseDuration(text); {
			case err != nil:
				v.Fail(hint, "host.reclaim: %q is not a length of time", text)
			case length < shortestReclaim || length > longestReclaim:
				v.Fail(hint, "host.reclaim: %s is not between %s and %s", text, shortestReclaim, longestReclaim)
			default:
				h.Reclaim = policy.Duration(length)
			}
		},
	}
}

// The bounds on host.history: at least what a person has to look at after a bad night.
const (
	fewestEntries = 10
	mostEntries   = 1000000
	shortestAge   = 24 * time.Hour
	longestAge    = 100 * 365 * 24 * time.Hour
)

// historyField is `host: {history: {entries: 5000, age: 400d}}`.
func historyField() yamlform.FormKey[policy.HostPart] {
	history := yamlform.Form[policy.History]{
		Name: "host.history",
		Keys: []yamlform.FormKey[policy.History]{
			{
				Name: "entries", Doc: "How many entries of the history are kept, at least 10; older ones go.",
				Schema: policy.JSONSchema{"type": "integer", "minimum": fewestEntries, "maximum": mostEntries},
				Read: func(v yamlform.Item, h *policy.History) {
					if n, ok := v.Number("a number of entries", fewestEntries, mostEntries); ok {
						h.Entries = int(n)
					}
				},
			},
			ageField("host.history.age", "How old an entry of the history may become", "400d",
				func(h *policy.History) *time.Duration { return &h.Age }),
		},
	}
	return yamlform.FormKey[policy.HostPart]{
		Name: "history",
		Doc: "How much of the history is kept, and with it of earlier revisions; all of it, up to 8 MiB, " +
			"unless named.", Schema: history.Schema(),
		Read: func(v yamlform.Item, h *policy.HostPart) { history.Read(v, "host.history.", &h.History) },
	}
}

// daysOrHours reads "400d" or "48h".
func daysOrHours(text string) (time.Duration, bool) {
	for _, unit := range []struct {
		name   string
		length time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}} {
		if number, is := strings.CutSuffix(text, unit.name); is {
			n, err := strconv.ParseUint(number, 10, 32)
			if err != nil || time.Duration(n) > longestAge/unit.length {
				return 0, false
			}
			return time.Duration(n) * unit.length, true
		}
	}
	return 0, false
}
