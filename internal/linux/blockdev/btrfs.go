package blockdev

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// btrfsVolumes lists the mounted ones. Their devices have links there since 3.14, and numbers in devinfo since 5.6.
func (h FS) btrfsVolumes() ([]btrfsVolume, error) {
	const top = "/sys/fs/btrfs"
	names, err := h.root.ReadDir(top)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all []btrfsVolume
	for _, uuid := range names {
		dir := path.Join(top, uuid)
		devices, err := h.root.ReadDir(dir + "/devices")
		if deviceGone(err) {
			continue // "features", "debug", or unmounted in this moment
		}
		if err != nil {
			return nil, err
		}
		v := btrfsVolume{uuid: uuid}
		for _, name := range devices {
			v.devices = append(v.devices, strings.ReplaceAll(name, "!", "/"))
		}
		slices.Sort(v.devices)
		infos, err := h.root.ReadDir(dir + "/devinfo")
		if err != nil && !deviceGone(err) {
			return nil, err
		}
		for _, info := range infos {
			if text, _ := h.root.ReadOptional(dir + "/devinfo/" + info + "/missing"); text == "1" {
				v.missing++
			}
		}
		for _, profile := range []string{"single", "dup", "raid0", "raid1", "raid1c3", "raid1c4", "raid10", "raid5",
			"raid6"} {
			if h.root.Exists(dir + "/allocation/data/" + profile) {
				v.profiles = append(v.profiles, profile)
			}
		}
		all = append(all, v)
	}
	return all, nil
}
