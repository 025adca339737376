package hostpart

import (
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// ceilingForm is one entry of `host.io:`.
func ceilingForm() yamlform.Form[policy.Ceiling] {
	bandwidth, iops := &policy.Limit{Key: "host.io.bandwidth", Unit: policy.RateUnit},
		&policy.Limit{Key: "host.io.iops", Unit: policy.IntegerUnit[policy.IOPS]("a number of operations", 1, 1<<31-1)}
	return yamlform.Form[policy.Ceiling]{
		Name: "an entry of host.io",
		Elsewhere: map[string]string{"read": "a ceiling is for reads and for writes alike",
			"write": "a ceiling is for reads and for writes alike"},
		Keys: []yamlform.FormKey[policy.Ceiling]{
			{
				Name: "on", Doc: "What the ceiling is of: a device, a mount point, any path on it, vg:NAME " +
					"or asm:NAME.", Schema: policy.JSONSchema{"type": "string", "pattern": policy.TargetPattern},
				Read: func(v yamlform.Item, c *policy.Ceiling) {
					text, ok := v.Text()
					if !ok {
						return
					}
					target, wrong := policy.DiskTarget(text)
					if wrong != nil {
						v.Fail(wrong.Hint, "host.io.on: %s", wrong.Msg)
					}
					c.On = target
				},
			},
			{
				Name: "bandwidth", Doc: "Most bytes that it reads, or writes, in a second.",
				Schema: policy.SizeRateSchema,
				Read: func(v yamlform.Item, c *policy.Ceiling) {
					s, ok := v.Limit(bandwidth)
					if c.Bandwidth, _ = s.Value.(policy.Rate); ok && c.Bandwidth == 0 {
						v.Fail("write a rate, such as 500MB/s", "host.io.bandwidth: %s is a share of nothing", s.Value)
					}
				},
			},
			{
				Name: "iops", Doc: "Most operations that it does in a second, reads or writes.", Schema: iops.Schema(),
				Read: func(v yamlform.Item, c *policy.Ceiling) {
					s, _ := v.Limit(iops)
					c.IOPS, _ = s.Value.(policy.IOPS)
				},
			},
			modelField(),
		},
	}
}

// ceilings reads `host.io:`.
func readCeilings(v yamlform.Item, o yamlform.Form[policy.Ceiling]) []policy.Ceiling {
	var all []policy.Ceiling
	for _, item := range v.Items("write a list: `io: [{on: /dev/sdb, bandwidth: 500MB/s, iops: 8000}]`") {
		c := policy.Ceiling{Pos: item.Pos()}
		if !o.Read(item, "host.io.", &c) {
			continue
		}
		switch {
		case c.On == "":
			item.Fail("add `on: /dev/sdb`, a path, vg:NAME or asm:NAME", "this entry of host.io names no device")
			continue
		case c.Bandwidth == 0 && c.IOPS == 0 && c.Model == nil:
			item.Fail("add `bandwidth: 500MB/s` or `iops: 8000`; `bulkhead discover disks --measure` measures them",
				"this entry of host.io names no ceiling of %s", c.On)
			continue
		}
		if at := slices.IndexFunc(all, func(o policy.Ceiling) bool { return o.On == c.On }); at >= 0 {
			item.Fail("keep one of them", "host.io: %s is here twice", c.On)
			item.Also(all[at].Pos)
		}
		all = append(all, c)
	}
	return all
}

// modelField is `model:` of an entry of `host.io:`.
func modelField() yamlform.FormKey[policy.Ceiling] {
	bandwidth, ops := &policy.Limit{Key: "host.io.model.bandwidth", Unit: policy.RateUnit},
		&policy.Limit{Key: "host.io.model.iops", Unit: policy.IntegerUnit[policy.IOPS]("a number of operations", 1,
			1<<31-1)}
	count := func(name, doc string, into func(*policy.ModelRates) *policy.IOPS) yamlform.FormKey[policy.ModelRates] {
		return yamlform.FormKey[policy.ModelRates]{Name: name, Doc: doc, Schema: ops.Schema(),
			Read: func(v yamlform.Item, m *policy.ModelRates) {
				s, _ := v.Limit(ops)
				*into(m), _ = s.Value.(policy.IOPS)
			}}
	}
	rates := yamlform.Form[policy.ModelRates]{
		Name: "a direction of a model",
		Keys: []yamlform.FormKey[policy.ModelRates]{
			{
				Name: "bandwidth", Doc: "Most bytes in a second.", Schema: policy.SizeRateSchema,
				Read: func(v yamlform.Item, m *policy.ModelRates) {
					s, _ := v.Limit(bandwidth)
					m.Bandwidth, _ = s.Value.(policy.Rate)
				},
			},
			count("sequential", "Most operations of 4 KiB in a row, in a second.",
				func(m *policy.ModelRates) *policy.IOPS { return &m.Sequential }),
			count("random", "Most operations of 4 KiB at random, in a second.",
				func(m *policy.ModelRates) *policy.IOPS { return &m.Random }),
		},
	}
	direction := func(name, doc string, into func(*policy.Model) *policy.ModelRates) yamlform.FormKey[policy.Model] {
		return yamlform.FormKey[policy.Model]{Name: name, Doc: doc, Schema: rates.Schema(),
			Read: func(v yamlform.Item, m *policy.Model) {
				r := into(m)
				if rates.Read(v, "host.io.model."+name+".", r) &&
					(r.Bandwidth == 0 || r.Sequential == 0 || r.Random == 0) {
					v.Fail("`bulkhead discover disks --measure` measures all of them",
						"host.io.model.%s needs bandwidth, sequential and random", name)
				}
			}}
	}
	model := yamlform.Form[policy.Model]{
		Name: "a model",
		Keys: []yamlform.FormKey[policy.Model]{
			direction("read", "Reads.", func(m *policy.Model) *policy.ModelRates { return &m.Read }),
			direction("write", "Writes.", func(m *policy.Model) *policy.ModelRates { return &m.Write }),
		},
	}
	return yamlform.FormKey[policy.Ceiling]{
		Name:   "model",
		Doc:    "What the disk can do, as iocost wants to know it: with it a weight on this disk is held by iocost.",
		Schema: model.Schema(),
		Read: func(v yamlform.Item, c *policy.Ceiling) {
			m := policy.Model{Pos: v.Pos()}
			if !model.Read(v, "host.io.model.", &m) {
				return
			}
			if m.Read == (policy.ModelRates{}) || m.Write == (policy.ModelRates{}) {
				v.Fail("`bulkhead discover disks --measure PATH` prints both", "host.io.model needs read and write")
				return
			}
			c.Model = &m
		},
	}
}

// diskGroupForm is one entry of `host.asm:`.
func diskGroupForm() yamlform.Form[policy.DiskGroup] {
	return yamlform.Form[policy.DiskGroup]{
		Name: "an entry of host.asm",
		Keys: []yamlform.FormKey[policy.DiskGroup]{
			{
				Name: "group", Doc: "Name of the ASM disk group.",
				Schema: policy.JSONSchema{"type": "string", "pattern": policy.ASMName.String()},
				Read: func(v yamlform.Item, g *policy.DiskGroup) {
					text, ok := v.Text()
					if ok && !policy.ASMName.MatchString(text) {
						v.Fail("", "host.asm.group: %q is not the name of an ASM disk group", text)
					}
					g.Name = strings.ToUpper(text)
				},
			},
			{
				Name: "disks", Doc: "Its disks: paths, with * and ? in the last part, or ORCL:LABEL and AFD:LABEL.",
				Schema: yamlform.ListOf(policy.JSONSchema{"type": "string", "minLength": 1}),
				Read: func(v yamlform.Item, g *policy.DiskGroup) {
					for _, item := range v.Items("write a list: `disks: [/dev/mapper/asm_data*]`") {
						text, ok := item.Text()
						if ok && !path.IsAbs(text) && !strings.HasPrefix(text, "ORCL:") && !strings.HasPrefix(text,
							"AFD:") {
							item.Fail("write the whole path, from /",
								"host.asm.disks: %q is neither a path nor a label", text)
						}
						if _, err := path.Match(text, ""); err != nil {
							item.Fail("see path globs: * ? [a-z]", "host.asm.disks: %q is not a glob: %v", text, err)
						}
						g.Disks = append(g.Disks, text)
					}
				},
			},
			{
				Name: "list", Doc: "A file with one of its disks on each line, as asmcmd lsdsk prints them.",
				Schema: policy.JSONSchema{"type": "string", "pattern": "^/"},
				Read: func(v yamlform.Item, g *policy.DiskGroup) {
					text, ok := v.Text()
					if ok && !path.IsAbs(text) {
						v.Fail("write the whole path, from /", "host.asm.list: %q is not an absolute path", text)
					}
					g.File = text
				},
			},
		},
	}
}

// diskGroups reads `host.asm:`.
func readDiskGroups(v yamlform.Item, o yamlform.Form[policy.DiskGroup]) []policy.DiskGroup {
	var all []policy.DiskGroup
	for _, item := range v.Items("write a list: `asm: [{group: DATA, disks: [/dev/mapper/asm_data*]}]`") {
		g := policy.DiskGroup{Pos: item.Pos()}
		if !o.Read(item, "host.asm.", &g) {
			continue
		}
		switch {
		case g.Name == "":
			item.Fail("add `group: DATA`", "this entry of host.asm names no group")
			continue
		case len(g.Disks) == 0 && g.File == "":
			item.Fail("add `disks: [/dev/…]` or `list: FILE`", "this entry of host.asm names no disks of %s", g.Name)
			continue
		}
		for _, other := range all {
			if other.Name == g.Name {
				item.Fail("keep one of them", "host.asm: %s is here twice", g.Name)
				item.Also(other.Pos)
			}
		}
		all = append(all, g)
	}
	return all
}

// linkForm is one entry of `host.network:`.
func linkForm() yamlform.Form[policy.NetworkLink] {
	rate := &policy.Limit{Key: "host.network.rate", Unit: policy.BitRateUnit}
	return yamlform.Form[policy.NetworkLink]{
		Name: "an entry of host.network",
		Elsewhere: map[string]string{"bandwidth": "did you mean rate?", "max": "did you mean rate?",
			"egress": "limits belong to a group"},
		Keys: []yamlform.FormKey[policy.NetworkLink]{
			{
				Name: "on", Doc: "The interface, as in a group's network entry.",
				Schema: policy.JSONSchema{"type": "string", "pattern": policy.InterfacePattern},
				Read: func(v yamlform.Item, l *policy.NetworkLink) {
					l.OnPos = v.Pos()
					l.On, _ = NetworkTarget(v)
				},
			},
			{
				Name: "rate",
				Doc: "What the link carries in each direction, where the interface does not say it or a switch " +
					"behind it carries less.", Schema: rate.Schema(),
				Read: func(v yamlform.Item, l *policy.NetworkLink) {
					s, _ := v.Limit(rate)
					l.Rate, _ = s.Value.(policy.BitRate)
				},
			},
			{
				Name: "peer",
				Doc: "ADDRESS:PORT of a TCP service that must stay within reach: when it is lost while limits of " +
					"the network change, the change is undone.",
				Schema: policy.JSONSchema{"type": "string", "pattern": `^.+:[0-9]+$`,
					"examples": []any{"192.0.2.1:22"}},
				Read: func(v yamlform.Item, l *policy.NetworkLink) {
					text, ok := v.Text()
					if wrong := checkPeer(text); ok && wrong != nil {
						v.Fail(wrong.Hint, "host.network.peer: %s", wrong.Msg)
					}
					l.Peer = text
				},
			},
		},
	}
}

func checkPeer(text string) *policy.Fault {
	name, port, err := net.SplitHostPort(text)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || name == "" {
		return policy.Faultf("write an address and a TCP port, such as 192.0.2.1:22 or [2001:db8::1]:22",
			"%q is not an address with a port", text)
	}
	return nil
}

// networkLinks reads `host.network:`.
func readNetworkLinks(v yamlform.Item, o yamlform.Form[policy.NetworkLink]) []policy.NetworkLink {
	var all []policy.NetworkLink
	for _, item := range v.Items("write a list: `network: [{on: eth0, rate: 10Gbit/s}]`") {
		l := policy.NetworkLink{Pos: item.Pos()}
		if !o.Read(item, "host.network.", &l) {
			continue
		}
		if l.On == "" || l.Rate == 0 && l.Peer == "" {
			item.Fail("write `{on: eth0, rate: 10Gbit/s}`, with `peer: 192.0.2.1:22` if somebody must stay "+
				"within reach", "this entry of host.network says nothing about an interface")
			continue
		}
		if at := slices.IndexFunc(all, func(o policy.NetworkLink) bool { return o.On == l.On }); at >= 0 {
			item.Fail("keep one of them", "host.network: %s is here twice", l.On)
			item.Also(all[at].Pos)
		}
		all = append(all, l)
	}
	return all
}

// NetworkTarget reads what names an interface.
func NetworkTarget(v yamlform.Item) (string, bool) {
	text, ok := v.Text()
	if !ok {
		return "", false
	}
	on, wrong := policy.InterfaceTarget(text)
	if wrong != nil {
		v.Fail(wrong.Hint, "%s: %s", v.Name(), wrong.Msg)
	}
	return on, wrong == nil
}
