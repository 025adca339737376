package blockdev

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// disk reads what a disk calls itself. Serial numbers are in different places: virtio-blk has a file of its own, NVMe
// and MMC one of the controller or card, SCSI a page of product data (since 3.15, binary).
func (s deviceFinder) disk(l *Layer, d *Device) {
	l.Model = d.Model
	l.WWID = firstText(s.attribute(l, d.dir+"/wwid"), s.attribute(l, d.dir+"/device/wwid"))
	l.Serial = firstText(s.attribute(l, d.dir+"/serial"), s.attribute(l, d.dir+"/device/serial"),
		serialPage(s.attribute(l, d.dir+"/device/vpd_pg80")))
	if state := s.attribute(l, d.dir+"/device/state"); state != "running" && state != "live" { // SCSI, NVMe
		l.Detail = state
	}
	for prefix, what := range map[string]string{"nbd": "on another host (nbd)", "rbd": "on a Ceph cluster (rbd)",
		"drbd": "mirrored to another host (DRBD)", "zd": "a ZFS volume"} {
		if strings.HasPrefix(d.Name, prefix) {
			l.Detail = what
		}
	}
	if s.h.root != nil && strings.HasPrefix(path.Base(path.Dir(d.dir)), "nvme-subsys") {
		s.nvmePaths(l, d)
	}
	if strings.HasPrefix(d.Name, "zd") {
		s.zvol(l, d)
	}
}

func firstText(texts ...string) string {
	for _, t := range texts {
		if t = strings.Join(strings.Fields(strings.ReplaceAll(t, "\x00", " ")), " "); t != "" {
			return t
		}
	}
	return ""
}

// serialPage takes the serial number out of vital product data page 80h (SPC-3, 7.6.10).
func serialPage(page string) string {
	if len(page) < 4 || page[1] != 0x80 {
		return ""
	}
	length := int(page[2])<<8 | int(page[3])
	return page[4:min(4+length, len(page))]
}

// nvmePath is a path's name: "nvme0c1n1" leads to nvme0n1 by the controller nvme1.
var nvmePath = regexp.MustCompile(`^(nvme\d+)c\d+(n\d+)$`)

// nvmePaths finds the paths of a disk with native multipath (since 4.15). Each is a hidden disk without a number, below
// its controller; the directory of the subsystem links to the controllers (since 4.16).
func (s deviceFinder) nvmePaths(l *Layer, d *Device) {
	subsystem := path.Dir(d.dir)
	l.Model = firstText(l.Model, s.attribute(l, subsystem+"/model"))
	l.Serial = firstText(l.Serial, s.attribute(l, subsystem+"/serial"))
	names, err := s.h.root.ReadDir(subsystem)
	if err != nil {
		l.trouble("read paths: %v", err)
	}
	slices.Sort(names)
	for _, controller := range names {
		if digits, is := strings.CutPrefix(controller, "nvme"); !is || digits == "" ||
			strings.Trim(digits, "0123456789") != "" {
			continue
		}
		dir := subsystem + "/" + controller
		spaces, err := s.h.root.ReadDir(dir)
		if err != nil && !deviceGone(err) {
			l.trouble("read paths: %v", err)
		}
		slices.Sort(spaces)
		for _, space := range spaces {
			if m := nvmePath.FindStringSubmatch(space); m != nil && m[1]+m[2] == d.Name {
				l.below(RolePath, s.nvmePath(controller, dir, space))
			}
		}
	}
}

func (s deviceFinder) nvmePath(controller, dir, name string) *Layer {
	return s.layer("path "+name, func(l *Layer) {
		l.Kind, l.Name = Path, name
		words := []string{controller, s.attribute(l, dir+"/transport"), s.attribute(l, dir+"/address"),
			s.attribute(l, dir+"/state"), s.attribute(l, dir+"/"+name+"/ana_state")}
		l.Detail = strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
		l.Serial, l.Model = firstText(s.attribute(l, dir+"/serial")), firstText(s.attribute(l, dir+"/model"))
	})
}
