package systemd

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// searchDirs are where unit files and drop-ins lie, the strongest first (systemd.unit(5), "Unit File Search Path"), without
// those of properties that were set over D-Bus.
var searchDirs = []string{
	"/etc/systemd/system", "/run/systemd/system", "/run/systemd/generator", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
}

// FileSetting is one assignment in a file of a unit.
type FileSetting struct {
	Setting string `json:"setting"` // "MemoryMax"
	Value   string `json:"value"`
	File    string `json:"file"` // on the host, without Options.Root
}

// FileSettings gives what the files of a unit say, in the order in which the last one counts: its own file, then the drop-ins
// by name, whatever directory they are in. Overrides stand for the properties that were set over D-Bus.
func (m *Manager) FileSettings(unit string, overrides []Override) ([]FileSetting, error) {
	if err := CheckName(unit); err != nil {
		return nil, &Error{Op: "read files of", Unit: unit, Kind: ErrInvalid, Cause: err}
	}
	var all []FileSetting
	names := []string{unit}
	if template, ok := templateOf(unit); ok {
		names = append(names, template)
	}
	for _, name := range names {
		for _, dir := range searchDirs {
			text, err := os.ReadFile(filepath.Join("/", m.options.Root, dir, name))
			if err == nil {
				all = append(all, parseSettings(string(text), path.Join(dir, name))...)
				break
			}
		}
		if all != nil {
			break
		}
	}
	dropIns := map[string]FileSetting{} // by name; Value is the text
	for _, name := range dropInNames(unit) {
		for _, dir := range searchDirs {
			files, _ := os.ReadDir(filepath.Join("/", m.options.Root, dir, name+".d")) // most are not there
			for _, f := range files {
				at := path.Join(dir, name+".d", f.Name())
				if _, stronger := dropIns[f.Name()]; stronger || !strings.HasSuffix(f.Name(), ".conf") {
					continue
				}
				text, err := os.ReadFile(filepath.Join("/", m.options.Root, at))
				if err != nil {
					continue // gone since, or a link to nowhere
				}
				dropIns[f.Name()] = FileSetting{Value: string(text), File: at}
			}
		}
	}
	for _, o := range overrides {
		dropIns[path.Base(o.Path)] = FileSetting{Value: string(o.Text), File: o.Path}
	}
	order := make([]string, 0, len(dropIns))
	for name := range dropIns {
		order = append(order, name)
	}
	slices.Sort(order)
	for _, name := range order {
		all = append(all, parseSettings(dropIns[name].Value, dropIns[name].File)...)
	}
	return all, nil
}

// Later gives those settings of a unit's drop-ins that win over a property of the same name at each daemon-reload, because
// the name of their file sorts after the one that systemd keeps the property in (measured on 252).
func (m *Manager) Later(unit string) ([]FileSetting, error) {
	all, err := m.FileSettings(unit, nil)
	return slices.DeleteFunc(all, func(s FileSetting) bool {
		return !strings.HasSuffix(path.Dir(s.File), ".d") || path.Base(s.File) <= "50-"+s.Setting+".conf"
	}), err
}

// templateOf is the template of an instance: "a@.service" of "a@b.service".
func templateOf(unit string) (string, bool) {
	before, _, ok := strings.Cut(unit, "@")
	return before + "@." + TypeOf(unit), ok
}

// dropInNames are the names whose directories hold drop-ins of a unit, the nearest first (systemd.unit(5)).
func dropInNames(unit string) []string {
	names := []string{unit}
	prefix, suffix, _ := cutSuffix(unit)
	if template, ok := templateOf(unit); ok {
		names = append(names, template)
		prefix, _, _ = strings.Cut(unit, "@")
	}
	for i := strings.LastIndexByte(strings.TrimSuffix(prefix, "-"), '-'); i > 0; i = strings.LastIndexByte(prefix[:i], '-') {
		names = append(names, prefix[:i+1]+"."+suffix)
	}
	return append(names, suffix)
}

// parseSettings reads the assignments of a unit file.
func parseSettings(text, file string) (all []FileSetting) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.ContainsAny(line[:1], "#;[") {
			continue
		}
		if key, value, ok := strings.Cut(line, "="); ok {
			all = append(all, FileSetting{strings.TrimSpace(key), strings.TrimSpace(value), file})
		}
	}
	return all
}

// ParseBytes reads an amount of memory as a unit file has it: "300M" by 1024, "20%" of total, "infinity"; ok is false for no
// limit and for what cannot be read.
func ParseBytes(text string, total int64) (n int64, ok bool) {
	if percent, is := strings.CutSuffix(text, "%"); is {
		p, err := strconv.ParseFloat(percent, 64)
		return int64(float64(total) / 100 * p), err == nil
	}
	shift := 0
	if i := strings.IndexAny(text, "KMGTPE"); i > 0 && i == len(text)-1 {
		shift = 10 * (1 + strings.IndexByte("KMGTPE", text[i]))
		text = text[:i]
	}
	f, err := strconv.ParseFloat(text, 64)
	return int64(f * float64(int64(1)<<shift)), err == nil && f >= 0 && f < float64(int64(1)<<(62-shift))
}
