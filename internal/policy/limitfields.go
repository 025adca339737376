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
func settingFields[T any](get func(*T) (*Settings, *Role)) []field[T] {
	io, network := ioObject(), networkObject()
	add := func(into *T, s Setting) {
		settings, _ := get(into)
		*settings = append(*settings, s)
	}
	fields := []field[T]{
		{
			name: "role", doc: "What the group is for: database, helper or batch. It sets default weights and forbids nothing.",
			schema: schema{"enum": roles},
			read: func(w *walker, v value, into *T) {
				_, role := get(into)
				word, _ := w.word(v, roles...)
				*role = Role(word)
			},
		},
		{
			name: "numa", doc: "NUMA nodes whose CPUs and memory the group may use; cpu.numa, cpu.cpus and memory.numa go before it.",
			schema: limitOf(KeyCPUNUMA).schema(),
			read:   func(w *walker, v value, into *T) { w.numa(v, func(s Setting) { add(into, s) }) },
		},
		blockField("cpu", "CPU.", add),
		blockField("memory", "Memory. A percentage is of MemTotal.", add, hugeField(add)),
		{
			name: "io", doc: "Disk bandwidth and operations, for each device.", schema: listOf(schema{"$ref": "#/$defs/io"}),
			read: func(w *walker, v value, into *T) { w.io(v, io, func(s Setting) { add(into, s) }) },
		},
		{
			name: "network", doc: "Bandwidth on network interfaces, in both directions.", schema: listOf(schema{"$ref": "#/$defs/network"}),
			read: func(w *walker, v value, into *T) { w.network(v, network, func(s Setting) { add(into, s) }) },
		},
	}
	for _, key := range []Key{KeyTasks, KeyOOMScoreAdj} {
		fields = append(fields, limitField(limitOf(key), add))
	}
	return fields
}

// limitField is the field of one limit.
func limitField[T any](l *limit, add func(*T, Setting)) field[T] {
	return field[T]{
		name: l.name(), doc: l.doc, schema: l.schema(),
		read: func(w *walker, v value, into *T) {
			if s, ok := w.limit(v, l); ok {
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
func blockField[T any](name, doc string, add func(*T, Setting), special ...field[T]) field[T] {
	o := object[T]{name: name, elsewhere: otherWords[name]}
	for _, l := range below(name) {
		if i := slices.IndexFunc(special, func(f field[T]) bool { return f.name == l.name() }); i >= 0 {
			o.fields = append(o.fields, special[i])
			continue
		}
		o.fields = append(o.fields, limitField(l, add))
	}
	return field[T]{
		name: name, doc: doc, schema: o.schema(),
		read: func(w *walker, v value, into *T) { o.read(w, v, name+".", into) },
	}
}

var roles = []string{string(RoleDatabase), string(RoleHelper), string(RoleBatch)}

// numa reads `numa:` of a group: the nodes of its CPUs and of its memory. What the group says about
// either one itself goes before these; settle sees to that.
func (w *walker) numa(v value, add func(Setting)) {
	s, ok := w.limit(v, limitOf(KeyCPUNUMA))
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
func hugeField[T any](add func(*T, Setting)) field[T] {
	l := limitOf(KeyMemoryHuge)
	return field[T]{
		name: "huge", doc: l.doc, schema: mapOf(`^[0-9]+ ?([KMG]i?B|kB)$`, l.schema()),
		read: func(w *walker, v value, into *T) {
			seen := make(map[string]string)
			for _, e := range w.entries(v, "memory.huge.") {
				size, wrong := pageSize(e.key.Value)
				if wrong != nil {
					w.fail(e.key, wrong.hint, "memory.huge: %s", wrong.msg)
					continue
				}
				name := HugePageName(size)
				if other := seen[name]; other != "" {
					w.fail(e.key, "keep one of them", "memory.huge: %s and %s are one page size", other, e.key.Value)
					continue
				}
				seen[name] = e.key.Value
				s, ok := w.limit(e.value, l)
				if !ok {
					continue
				}
				if b, sized := s.Value.(Bytes); sized && b > 0 && int64(b) < size {
					w.fail(e.value.Node, "", "memory.huge: %s is less than one page of %s", b, e.key.Value)
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

// ioObject is one entry of `io:`.
func ioObject() object[ioItem] {
	add := func(into *ioItem, s Setting) { into.limits = append(into.limits, s) }
	ioBlock := func(name, doc string) field[ioItem] {
		f := blockField("io."+name, doc, add)
		f.name = name
		return f
	}
	return object[ioItem]{
		name:      "an io entry",
		elsewhere: map[string]string{"bandwidth": "write it below `read:` and `write:`", "iops": "write it below `read:` and `write:`"},
		fields: []field[ioItem]{
			{
				name: "on", doc: "What is limited: a device (/dev/sdb or 8:16), a mount point, any path on it, a volume group (vg:NAME) or an ASM disk group (asm:NAME). Without it, every disk and loop device.",
				schema: schema{"type": "string", "pattern": targetPattern},
				read: func(w *walker, v value, i *ioItem) {
					text, ok := w.text(v)
					if !ok {
						return
					}
					target, wrong := ioTarget(text)
					if wrong != nil {
						w.fail(v.Node, wrong.hint, "io.on: %s", wrong.msg)
					}
					i.on, i.onPos = target, w.at(v.Node)
				},
			},
			ioBlock("read", "Reads."),
			ioBlock("write", "Writes."),
			limitField(limitOf(KeyIOWeight), add),
			{
				name: "split", doc: "How several devices share the limit: by-use (the default) gives more to the one where more is read and written, as the agent sees it; even gives each as much.",
				schema: schema{"enum": splits},
				read: func(w *walker, v value, i *ioItem) {
					word, _ := w.word(v, splits...)
					i.split = Split(word)
				},
			},
			{
				name: "layer", doc: "Which layer is limited: top is the device that the filesystem is on, leaf the disks below, which share the limit. auto is top where a filesystem is on one device, else leaf.",
				schema: schema{"enum": layers},
				read: func(w *walker, v value, i *ioItem) {
					word, _ := w.word(v, layers...)
					i.layer = Layer(word)
				},
			},
		},
	}
}

// io reads `io:`.
func (w *walker) io(v value, o object[ioItem], add func(Setting)) {
	seen := make(map[string]value)
	for _, item := range w.items(v, "write a list: `io: [{on: /dev/sdb, read: {bandwidth: 50MB/s}}]`") {
		var i ioItem
		if !o.read(w, item, "io.", &i) {
			continue
		}
		if len(i.limits) == 0 {
			w.fail(item.Node, "add `read: {bandwidth: …, iops: …}` or `write: {…}`", "this io entry limits nothing")
			continue
		}
		if first, twice := seen[i.on]; twice {
			w.fail(item.Node, "put all limits of one device into one entry", "io: %s is here twice", targetName(i.on))
			w.also(w.at(first.Node))
			continue
		}
		seen[i.on] = item
		if i.on == "" && i.layer != "" {
			w.fail(item.Node, "name what is limited with `on`", "io.layer has no target: without `on` every disk and loop device is limited")
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
