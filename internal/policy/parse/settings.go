package parse

import (
	"slices"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// settingFields are the keys that groups and classes share: the role and every limit. get finds
// where a T keeps them.
func settingFields[T any](get func(*T) (*policy.Settings, *policy.Role)) []yamlform.FormKey[T] {
	io, network := ioForm(), networkForm()
	add := func(into *T, s policy.Setting) {
		settings, _ := get(into)
		*settings = append(*settings, s)
	}
	fields := []yamlform.FormKey[T]{
		{
			Name:   "role",
			Doc:    "What the group is for: database, helper or batch. It sets default weights and forbids nothing.",
			Schema: policy.JSONSchema{"enum": roles},
			Read: func(v yamlform.Item, into *T) {
				_, role := get(into)
				word, _ := v.Word(roles...)
				*role = policy.Role(word)
			},
		},
		{
			Name: "numa",
			Doc: "NUMA nodes whose CPUs and memory the group may use; cpu.numa, cpu.cpus and memory.numa " +
				"go before it.",
			Schema: policy.LimitOf(policy.KeyCPUNUMA).Schema(),
			Read:   func(v yamlform.Item, into *T) { readNuma(v, func(s policy.Setting) { add(into, s) }) },
		},
		blockField("cpu", "CPU.", add),
		blockField("memory", "Memory. A percentage is of MemTotal.", add, hugeField(add)),
		{
			Name: "io", Doc: "Disk bandwidth and operations, for each device.",
			Schema: yamlform.ListOf(policy.JSONSchema{"$ref": "#/$defs/io"}),
			Read:   func(v yamlform.Item, into *T) { readIo(v, io, func(s policy.Setting) { add(into, s) }) },
		},
		{
			Name: "network", Doc: "Bandwidth on network interfaces, in both directions.",
			Schema: yamlform.ListOf(policy.JSONSchema{"$ref": "#/$defs/network"}),
			Read:   func(v yamlform.Item, into *T) { readNetwork(v, network, func(s policy.Setting) { add(into, s) }) },
		},
	}
	for _, key := range []policy.Key{policy.KeyTasks, policy.KeyOOMScoreAdj} {
		fields = append(fields, limitField(policy.LimitOf(key), add))
	}
	return fields
}

// limitField is the field of one limit.
func limitField[T any](l *policy.Limit, add func(*T, policy.Setting)) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{
		Name: l.Name(), Doc: l.Doc, Schema: l.Schema(),
		Read: func(v yamlform.Item, into *T) {
			if s, ok := v.Limit(l); ok {
				add(into, s)
			}
		},
	}
}

// ofShares says how to write what cgroup v1 calls shares.
const ofShares = "cpu.weight is shares * 100 / 1024: 50 for 512"

// otherWords are what the kernel's files and other tools call a limit.
var otherWords = map[string]map[string]string{
	"cpu": {"shares": ofShares, "quota": "did you mean limit?", "max": "did you mean limit?",
		"cores": "did you mean limit?", "mems": "did you mean memory.numa?"},
	"memory": {"limit": "did you mean max?", "soft_limit": "did you mean high or low?",
		"hugepages": "did you mean huge?"},
}

// blockField is the field of a block of limits, "cpu" or "memory". special stands for the rows of the
// table that are not written as one value.
func blockField[T any](name, doc string, add func(*T, policy.Setting),
	special ...yamlform.FormKey[T]) yamlform.FormKey[T] {
	o := yamlform.Form[T]{Name: name, Elsewhere: otherWords[name]}
	for _, l := range policy.Below(name) {
		if i := slices.IndexFunc(special, func(f yamlform.FormKey[T]) bool { return f.Name == l.Name() }); i >= 0 {
			o.Keys = append(o.Keys, special[i])
			continue
		}
		o.Keys = append(o.Keys, limitField(l, add))
	}
	return yamlform.FormKey[T]{
		Name: name, Doc: doc, Schema: o.Schema(),
		Read: func(v yamlform.Item, into *T) { o.Read(v, name+".", into) },
	}
}

var roles = []string{string(policy.RoleDatabase), string(policy.RoleHelper), string(policy.RoleBatch)}

// numa reads `numa:` of a group: the nodes of its CPUs and of its memory. What the group says about
// either one itself goes before these; settle sees to that.
func readNuma(v yamlform.Item, add func(policy.Setting)) {
	s, ok := v.Limit(policy.LimitOf(policy.KeyCPUNUMA))
	if !ok {
		return
	}
	s.Raw = "numa " + s.Value.String()
	for _, key := range []policy.Key{policy.KeyCPUNUMA, policy.KeyMemoryNUMA} {
		s.Key = key
		add(s)
	}
}

// hugeField is `memory.huge`: page size to limit.
func hugeField[T any](add func(*T, policy.Setting)) yamlform.FormKey[T] {
	l := policy.LimitOf(policy.KeyMemoryHuge)
	return yamlform.FormKey[T]{
		Name: "huge", Doc: l.Doc, Schema: yamlform.MapOf(`^[0-9]+ ?([KMG]i?B|kB)$`, l.Schema()),
		Read: func(v yamlform.Item, into *T) {
			seen := make(map[string]string)
			for _, e := range v.Entries("memory.huge.") {
				size, wrong := policy.PageSize(e.Name)
				if wrong != nil {
					e.Key.Fail(wrong.Hint, "memory.huge: %s", wrong.Msg)
					continue
				}
				name := policy.HugePageName(size)
				if other := seen[name]; other != "" {
					e.Key.Fail("keep one of them", "memory.huge: %s and %s are one page size", other, e.Name)
					continue
				}
				seen[name] = e.Name
				s, ok := e.Item.Limit(l)
				if !ok {
					continue
				}
				if b, sized := s.Value.(policy.Bytes); sized && b > 0 && int64(b) < size {
					e.Item.Fail("", "memory.huge: %s is less than one page of %s", b, e.Name)
					continue
				}
				s.On = name
				add(into, s)
			}
		},
	}
}

// ioItem is one entry of `io:` while it is read.
type ioItem struct {
	on     string
	onPos  policy.Pos
	layer  policy.Layer
	split  policy.Split
	limits policy.Settings
}

var splits = []string{string(policy.SplitByUse), string(policy.SplitEven)}

var layers = []string{string(policy.LayerAuto), string(policy.LayerTop), string(policy.LayerLeaf)}

// ioForm is one entry of `io:`.
func ioForm() yamlform.Form[ioItem] {
	add := func(into *ioItem, s policy.Setting) { into.limits = append(into.limits, s) }
	ioBlock := func(name, doc string) yamlform.FormKey[ioItem] {
		f := blockField("io."+name, doc, add)
		f.Name = name
		return f
	}
	return yamlform.Form[ioItem]{
		Name: "an io entry",
		Elsewhere: map[string]string{"bandwidth": "write it below `read:` and `write:`",
			"iops": "write it below `read:` and `write:`"},
		Keys: []yamlform.FormKey[ioItem]{
			{
				Name: "on", Doc: "What is limited: a device (/dev/sdb or 8:16), a mount point, any path on it, a " +
					"volume group (vg:NAME) or an ASM disk group (asm:NAME). Without it, every disk and loop device.",
				Schema: policy.JSONSchema{"type": "string", "pattern": policy.TargetPattern},
				Read: func(v yamlform.Item, i *ioItem) {
					text, ok := v.Text()
					if !ok {
						return
					}
					target, wrong := policy.DiskTarget(text)
					if wrong != nil {
						v.Fail(wrong.Hint, "io.on: %s", wrong.Msg)
					}
					i.on, i.onPos = target, v.Pos()
				},
			},
			ioBlock("read", "Reads."),
			ioBlock("write", "Writes."),
			limitField(policy.LimitOf(policy.KeyIOWeight), add),
			{
				Name: "split",
				Doc: "How several devices share the limit: by-use (the default) gives more to the one where more " +
					"is read and written, as the agent sees it; even gives each as much.",
				Schema: policy.JSONSchema{"enum": splits},
				Read: func(v yamlform.Item, i *ioItem) {
					word, _ := v.Word(splits...)
					i.split = policy.Split(word)
				},
			},
			{
				Name: "layer",
				Doc: "Which layer is limited: top is the device that the filesystem is on, leaf the disks below, " +
					"which share the limit. auto is top where a filesystem is on one device, else leaf.",
				Schema: policy.JSONSchema{"enum": layers},
				Read: func(v yamlform.Item, i *ioItem) {
					word, _ := v.Word(layers...)
					i.layer = policy.Layer(word)
				},
			},
		},
	}
}

// io reads `io:`.
func readIo(v yamlform.Item, o yamlform.Form[ioItem], add func(policy.Setting)) {
	seen := make(map[string]yamlform.Item)
	for _, item := range v.Items("write a list: `io: [{on: /dev/sdb, read: {bandwidth: 50MB/s}}]`") {
		var i ioItem
		if !o.Read(item, "io.", &i) {
			continue
		}
		if len(i.limits) == 0 {
			item.Fail("add `read: {bandwidth: …, iops: …}` or `write: {…}`", "this io entry limits nothing")
			continue
		}
		if first, twice := seen[i.on]; twice {
			item.Fail("put all limits of one device into one entry", "io: %s is here twice", targetName(i.on))
			item.Also(first.Pos())
			continue
		}
		seen[i.on] = item
		if i.on == "" && i.layer != "" {
			item.Fail("name what is limited with `on`",
				"io.layer has no target: without `on` every disk and loop device is limited")
			continue
		}
		for _, s := range i.limits {
			s.On, s.OnPos, s.Layer, s.Split = i.on, i.onPos, i.layer, i.split
			add(s)
		}
	}
}

func targetName(on string) string {
	if on == "" {
		return "the default for all devices"
	}
	return on
}
