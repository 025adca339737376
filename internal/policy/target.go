package policy

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strings"
)

// What targets that stand for several devices begin with.
const (
	ASMPrefix = "asm:"
	VGPrefix  = "vg:"
)

var (
	// ASMName is the name of an ASM disk group.
	ASMName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_$#]{0,29}$`) // as CREATE DISKGROUP takes it
	vgName  = regexp.MustCompile(`^[a-zA-Z0-9+_.][a-zA-Z0-9+_.-]{0,127}$`)
)

// groupTarget checks a target of the form "asm:DATA" or "vg:vgdata". ASM's names have no case and are kept in capitals.
func groupTarget(text string) (string, *Fault) {
	if name, is := strings.CutPrefix(text, ASMPrefix); is {
		if !ASMName.MatchString(name) {
			return "", Faultf("write the name of the disk group, as in asm:DATA",
				"%q is not the name of an ASM disk group", name)
		}
		return ASMPrefix + strings.ToUpper(name), nil
	}
	name := strings.TrimPrefix(text, VGPrefix)
	if !vgName.MatchString(name) {
		return "", Faultf("write the name of the volume group, as in vg:vgdata", "%q is not the name of a volume group",
			name)
	}
	return text, nil
}

// PageSize reads the size of a huge page. The kernel writes 2MB for 2 MiB, and pages come in powers
// of two only, so here both spellings are binary.
func PageSize(text string) (int64, *Fault) {
	const hint = "page sizes are written as 2MiB and 1GiB; `bulkhead discover` lists those of this kernel"
	number, unit, ok := split(text)
	if !ok {
		return 0, Faultf(hint, "%q is not a page size", text)
	}
	n, wrong := decimal(number)
	if wrong != nil {
		return 0, wrong
	}
	if len(unit) == 2 {
		unit = strings.ToUpper(unit[:1]) + "iB"
	}
	if bytesPer(unit) < 1<<10 || !n.IsInt() {
		return 0, Faultf(hint, "%q is not a page size", text)
	}
	size, wrong := scaled(n, bytesPer(unit), text)
	if wrong != nil {
		return 0, wrong
	}
	if size < 1<<14 || size > 1<<40 || size&(size-1) != 0 {
		return 0, Faultf(hint, "%s is not the size of a huge page", text)
	}
	return size, nil
}

// TargetPattern is what an io limit is on, other than a name that is found on the host: a path, a device number, a
// volume group or an ASM disk group.
const TargetPattern = `^(/.*|[0-9]+:[0-9]+|vg:.+|asm:.+)$`

var deviceNumber = regexp.MustCompile(`^[0-9]{1,6}:[0-9]{1,8}$`)

// DiskTarget checks and cleans what an io limit is on.
func DiskTarget(text string) (string, *Fault) {
	switch {
	case Placeholder.MatchString(text):
		return "", Faultf("name the device or a path for now", "%s: placeholders here are not yet supported", text)
	case deviceNumber.MatchString(text):
		return text, nil
	case strings.HasPrefix(text, ASMPrefix), strings.HasPrefix(text, VGPrefix):
		return groupTarget(text)
	case strings.HasPrefix(text, "/"):
		return path.Clean(text), nil
	}
	return "", Faultf(fmt.Sprintf("write a device (/dev/%s), its number (8:16), a path on it, vg:NAME or asm:NAME",
		path.Base(text)), "%q is not a device or an absolute path", text)
}

// InterfacePattern is what a network limit is on: the name of an interface, or a network in CIDR form.
const InterfacePattern = `^[^\s/]{1,15}$|^[0-9a-fA-F.:]+/[0-9]+$`

// InterfaceTarget checks what names an interface. The kernel's names have at most 15 bytes and hold no slash and no
// space.
func InterfaceTarget(text string) (string, *Fault) {
	const hint = "write the name of an interface, default, or a network such as 10.1.0.0/16"
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return "", Faultf(hint, "%q is not a network", text)
		}
		return prefix.Masked().String(), nil
	}
	if len(text) > 15 || strings.ContainsAny(text, " \t\n\v\f\r") || text == "." || text == ".." {
		return "", Faultf(hint, "%q is not the name of an interface", text)
	}
	return text, nil
}
