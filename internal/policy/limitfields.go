package policy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// settingFields are the keys that groups and classes share: the role and every limit. get finds
// where a T keeps them.
func settingFields[T any](get func(*T) (*Settings, *Role)) []FormKey[T] {
	io, network := ioForm(), networkForm()
	add := func(into *T, s Setting) {
		settings, _ := get(into)
		*settings = append(*settings, s)
	}
	fields := []FormKey[T]{
		{
			Name: "role", Doc: "What the group is for: database, helper or batch. It sets default weights and forbids nothing.",
			Schema: JSONSchema{"enum": roles},
			Read: func(v Item, into *T) {
				_, role := get(into)
				word, _ := v.Word(roles...)
				*role = Role(word)
			},
		},
		{
			Name: "numa", Doc: "NUMA nodes whose CPUs and memory the group may use; cpu.numa, cpu.cpus and memory.numa go before it.",
			Schema: limitOf(KeyCPUNUMA).Schema(),
			Read:   func(v Item, into *T) { readNuma(v, func(s Setting) { add(into, s) }) },
		},
		blockField("cpu", "CPU.", add),
		blockField("memory", "Memory. A percentage is of MemTotal.", add, hugeField(add)),
		{
			Name: "io", Doc: "Disk bandwidth and operations, for each device.", Schema: listOf(JSONSchema{"$ref": "#/$defs/io"}),
			Read: func(v Item, into *T) { readIo(v, io, func(s Setting) { add(into, s) }) },
		},
		{
			Name: "network", Doc: "Bandwidth on network interfaces, in both directions.", Schema: listOf(JSONSchema{"$ref": "#/$defs/network"}),
			Read: func(v Item, into *T) { readNetwork(v, network, func(s Setting) { add(into, s) }) },
		},
	}
	for _, key := range []Key{KeyTasks, KeyOOMScoreAdj} {
		fields = append(fields, limitField(limitOf(key), add))
	}
	return fields
}

// limitField is the field of one limit.
func limitField[T any](l *limit, add func(*T, Setting)) FormKey[T] {
	return FormKey[T]{
		Name: l.name(), Doc: l.doc, Schema: l.Schema(),
		Read: func(v Item, into *T) {
			if s, ok := v.Limit(l); ok {
				add(into, s)
			}
		},
	}
}

// otherWords are what the kernel's files and other tools call a limit.
var otherWords = map[string]map[string]string{
	"cpu":    {"shares": "did you mean weight?", "quota": "did you mean limit?", "max": "did you mean limit?", "cores": "did you mean limit?", "mems": "did you mean memory.numa?"},
	"memory": {"limit": "did you mean max?", "soft_limit": "did you mean high or low?", "hugepages": "did you mean huge?"},
}

// blockField is the field of a block of limits, "cpu" or "memory". special stands for the rows of the
// table that are not written as one value.
func blockField[T any](name, doc string, add func(*T, Setting), special ...FormKey[T]) FormKey[T] {
	o := Form[T]{Name: name, Elsewhere: otherWords[name]}
	for _, l := range below(name) {
		if i := slices.IndexFunc(special, func(f FormKey[T]) bool { return f.Name == l.name() }); i >= 0 {
			o.Keys = append(o.Keys, special[i])
			continue
		}
		o.Keys = append(o.Keys, limitField(l, add))
	}
	return FormKey[T]{
		Name: name, Doc: doc, Schema: o.Schema(),
		Read: func(v Item, into *T) { o.Read(v, name+".", into) },
	}
}

var roles = []string{string(RoleDatabase), string(RoleHelper), string(RoleBatch)}

// numa reads `numa:` of a group: the nodes of its CPUs and of its memory. What the group says about
// either one itself goes before these; settle sees to that.
func readNuma(v Item, add func(Setting)) {
	s, ok := v.Limit(limitOf(KeyCPUNUMA))
	if !ok {
		return
	}
	s.Raw = "numa " + s.Value.String()
	for _, key := range []Key{KeyCPUNUMA, KeyMemoryNUMA} {
		s.Key = key
		add(s)
	}
}

// settle finishes the settings of one block: it says who asks for them, drops what `numa:` asks where
// the same block names the CPUs or nodes itself, and puts the rest in order.
func (ss Settings) settle(who string) Settings {
	short := func(s Setting) bool { return strings.HasPrefix(s.Raw, "numa ") }
	settled := slices.DeleteFunc(slices.Clone(ss), func(s Setting) bool {
		return short(s) && slices.ContainsFunc(ss, func(o Setting) bool {
			return !short(o) && (o.Key == s.Key || (s.Key == KeyCPUNUMA && o.Key == KeyCPUCPUs))
		})
	})
	for i := range settled {
		settled[i].From = who
	}
	settled.sort()
	return settled
}

// hugeField is `memory.huge`: page size to limit.
func hugeField[T any](add func(*T, Setting)) FormKey[T] {
	l := limitOf(KeyMemoryHuge)
	return FormKey[T]{
		Name: "huge", Doc: l.doc, Schema: mapOf(`^[0-9]+ ?([KMG]i?B|kB)$`, l.Schema()),
		Read: func(v Item, into *T) {
			seen := make(map[string]string)
			for _, e := range v.Entries("memory.huge.") {
				size, wrong := pageSize(e.Name)
				if wrong != nil {
					e.Key.Fail(wrong.hint, "memory.huge: %s", wrong.msg)
					continue
				}
				name := HugePageName(size)
				if other := seen[name]; other != "" {
					e.Key.Fail("keep one of them", "memory.huge: %s and %s are one page size", other, e.Name)
					continue
				}
				seen[name] = e.Name
				s, ok := e.Item.Limit(l)
				if !ok {
					continue
				}
				if b, sized := s.Value.(Bytes); sized && b > 0 && int64(b) < size {
					e.Item.Fail("", "memory.huge: %s is less than one page of %s", b, e.Name)
					continue
				}
				s.On = name
				add(into, s)
			}
		},
	}
}

// pageSize reads the size of a huge page. The kernel writes 2MB for 2 MiB, and pages come in powers
// of two only, so here both spellings are binary.
func pageSize(text string) (int64, *fault) {
	const hint = "page sizes are written as 2MiB and 1GiB; `bulkhead discover` lists those of this kernel"
	number, unit, ok := split(text)
	if !ok {
		return 0, faultf(hint, "%q is not a page size", text)
	}
	n, wrong := decimal(number)
	if wrong != nil {
		return 0, wrong
	}
	if len(unit) == 2 {
		unit = strings.ToUpper(unit[:1]) + "iB"
	}
	if bytesPer(unit) < 1<<10 || !n.IsInt() {
		return 0, faultf(hint, "%q is not a page size", text)
	}
	size, wrong := scaled(n, bytesPer(unit), text)
	if wrong != nil {
		return 0, wrong
	}
	if size < 1<<14 || size > 1<<40 || size&(size-1) != 0 {
		return 0, faultf(hint, "%s is not the size of a huge page", text)
	}
	return size, nil
}

// ioItem is one entry of `io:` while it is read.
type ioItem struct {
	on     string
	onPos  Pos
	layer  Layer
	split  Split
	limits Settings
}

var splits = []string{string(SplitByUse), string(SplitEven)}

var layers = []string{string(LayerAuto), string(LayerTop), string(LayerLeaf)}

// ioForm is one entry of `io:`.
func ioForm() Form[ioItem] {
	add := func(into *ioItem, s Setting) { into.limits = append(into.limits, s) }
	ioBlock := func(name, doc string) FormKey[ioItem] {
		f := blockField("io."+name, doc, add)
		f.Name = name
		return f
	}
	return Form[ioItem]{
		Name:      "an io entry",
		Elsewhere: map[string]string{"bandwidth": "write it below `read:` and `write:`", "iops": "write it below `read:` and `write:`"},
		Keys: []FormKey[ioItem]{
			{
				Name: "on", Doc: "What is limited: a device (/dev/sdb or 8:16), a mount point, any path on it, a volume group (vg:NAME) or an ASM disk group (asm:NAME). Without it, every disk and loop device.",
				Schema: JSONSchema{"type": "string", "pattern": targetPattern},
				Read: func(v Item, i *ioItem) {
					text, ok := v.Text()
					if !ok {
						return
					}
					target, wrong := ioTarget(text)
					if wrong != nil {
						v.Fail(wrong.hint, "io.on: %s", wrong.msg)
					}
					i.on, i.onPos = target, v.Pos()
				},
			},
			ioBlock("read", "Reads."),
			ioBlock("write", "Writes."),
			limitField(limitOf(KeyIOWeight), add),
			{
				Name: "split", Doc: "How several devices share the limit: by-use (the default) gives more to the one where more is read and written, as the agent sees it; even gives each as much.",
				Schema: JSONSchema{"enum": splits},
				Read: func(v Item, i *ioItem) {
					word, _ := v.Word(splits...)
					i.split = Split(word)
				},
			},
			{
				Name: "layer", Doc: "Which layer is limited: top is the device that the filesystem is on, leaf the disks below, which share the limit. auto is top where a filesystem is on one device, else leaf.",
				Schema: JSONSchema{"enum": layers},
				Read: func(v Item, i *ioItem) {
					word, _ := v.Word(layers...)
					i.layer = Layer(word)
				},
			},
		},
	}
}

// io reads `io:`.
func readIo(v Item, o Form[ioItem], add func(Setting)) {
	seen := make(map[string]Item)
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
			item.Fail("name what is limited with `on`", "io.layer has no target: without `on` every disk and loop device is limited")
			continue
		}
		for _, s := range i.limits {
			s.On, s.onPos, s.Layer, s.Split = i.on, i.onPos, i.layer, i.split
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

const targetPattern = `^(/.*|[0-9]+:[0-9]+|vg:.+|asm:.+)$`

var deviceNumber = regexp.MustCompile(`^[0-9]{1,6}:[0-9]{1,8}$`)

// ioTarget checks and cleans what an io limit is on.
func ioTarget(text string) (string, *fault) {
	switch {
	case placeholder.MatchString(text):
		return "", faultf("name the device or a path for now", "%s: placeholders here are not yet supported", text)
	case deviceNumber.MatchString(text):
		return text, nil
	case strings.HasPrefix(text, asmTarget), strings.HasPrefix(text, vgTarget):
		return groupTarget(text)
	case strings.HasPrefix(text, "/"):
		return path.Clean(text), nil
	}
	return "", faultf(fmt.Sprintf("write a device (/dev/%s), its number (8:16), a path on it, vg:NAME or asm:NAME", path.Base(text)), "%q is not a device or an absolute path", text)
}
