package policy

import (
	"path"
	"regexp"
	"strings"

	"bulkhead/internal/host"
)

// DiskGroup says which disks an Oracle ASM disk group has, for a host on which their headers cannot tell.
type DiskGroup struct {
	Name string
	host.Members
	Pos Pos
}

// What targets that stand for several devices begin with.
const (
	asmTarget = "asm:"
	vgTarget  = "vg:"
)

var (
	asmName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_$#]{0,29}$`) // as CREATE DISKGROUP takes it
	vgName  = regexp.MustCompile(`^[a-zA-Z0-9+_.][a-zA-Z0-9+_.-]{0,127}$`)
)

// groupTarget checks a target of the form "asm:DATA" or "vg:vgdata". ASM's names have no case and are kept in capitals.
func groupTarget(text string) (string, *fault) {
	if name, is := strings.CutPrefix(text, asmTarget); is {
		if !asmName.MatchString(name) {
			return "", faultf("write the name of the disk group, as in asm:DATA", "%q is not the name of an ASM disk group", name)
		}
		return asmTarget + strings.ToUpper(name), nil
	}
	name := strings.TrimPrefix(text, vgTarget)
	if !vgName.MatchString(name) {
		return "", faultf("write the name of the volume group, as in vg:vgdata", "%q is not the name of a volume group", name)
	}
	return text, nil
}

// diskGroupForm is one entry of `host.asm:`.
func diskGroupForm() Form[DiskGroup] {
	return Form[DiskGroup]{
		Name: "an entry of host.asm",
		Keys: []FormKey[DiskGroup]{
			{
				Name: "group", Doc: "Name of the ASM disk group.", Schema: JSONSchema{"type": "string", "pattern": asmName.String()},
				Read: func(v Item, g *DiskGroup) {
					text, ok := v.Text()
					if ok && !asmName.MatchString(text) {
						v.Fail("", "host.asm.group: %q is not the name of an ASM disk group", text)
					}
					g.Name = strings.ToUpper(text)
				},
			},
			{
				Name: "disks", Doc: "Its disks: paths, with * and ? in the last part, or ORCL:LABEL and AFD:LABEL.", Schema: listOf(JSONSchema{"type": "string", "minLength": 1}),
				Read: func(v Item, g *DiskGroup) {
					for _, item := range v.Items("write a list: `disks: [/dev/mapper/asm_data*]`") {
						text, ok := item.Text()
						if ok && !path.IsAbs(text) && !strings.HasPrefix(text, "ORCL:") && !strings.HasPrefix(text, "AFD:") {
							item.Fail("write the whole path, from /", "host.asm.disks: %q is neither a path nor a label", text)
						}
						if _, err := path.Match(text, ""); err != nil {
							item.Fail("see path globs: * ? [a-z]", "host.asm.disks: %q is not a glob: %v", text, err)
						}
						g.Disks = append(g.Disks, text)
					}
				},
			},
			{
				Name: "list", Doc: "A file with one of its disks on each line, as asmcmd lsdsk prints them.", Schema: JSONSchema{"type": "string", "pattern": "^/"},
				Read: func(v Item, g *DiskGroup) {
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
func readDiskGroups(v Item, o Form[DiskGroup]) []DiskGroup {
	var all []DiskGroup
	for _, item := range v.Items("write a list: `asm: [{group: DATA, disks: [/dev/mapper/asm_data*]}]`") {
		g := DiskGroup{Pos: item.Pos()}
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

// members says how the disks of an ASM disk group are found.
func (h *HostPart) members(group string) host.Members {
	if h != nil {
		for _, g := range h.ASM {
			if g.Name == group {
				return g.Members
			}
		}
	}
	return host.Members{}
}
