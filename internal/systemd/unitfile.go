package systemd

import (
	"iter"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/systemd/unitname"
)

// searchDirs are where unit files and drop-ins lie, the strongest first (systemd.unit(5), "Unit File Search Path"),
// without those of properties that were set over D-Bus.
var searchDirs = []string{
	"/etc/systemd/system", "/run/systemd/system", "/run/systemd/generator", "/usr/local/lib/systemd/system",
	"/usr/lib/systemd/system", "/lib/systemd/system",
}

// FileSetting is one assignment in a file of a unit.
type FileSetting struct {
	Setting string `json:"setting"` // "MemoryMax"
	Value   string `json:"value"`
	File    string `json:"file"` // on the host, without Options.Root
}

// FileSettings gives what the files of a unit say, in the order in which the last one counts: its own file, then the
// drop-ins by name, whatever directory they are in. Overrides stand for the properties that were set over D-Bus.
func (f Files) FileSettings(unit string, overrides []Override) ([]FileSetting, error) {
	if err := unitname.CheckName(unit); err != nil {
		return nil, &Error{Op: "read files of", Unit: unit, Kind: ErrInvalid, Cause: err}
	}
	var all []FileSetting
	names := []string{unit}
	if template, ok := templateOf(unit); ok {
		names = append(names, template)
	}
	for _, name := range names {
		for _, dir := range searchDirs {
			text, err := os.ReadFile(filepath.Join("/", f.root, dir, name))
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
			files, _ := os.ReadDir(filepath.Join("/", f.root, dir, name+".d")) // most are not there
			for _, e := range files {
				at := path.Join(dir, name+".d", e.Name())
				if _, stronger := dropIns[e.Name()]; stronger || !strings.HasSuffix(e.Name(), ".conf") {
					continue
				}
				text, err := os.ReadFile(filepath.Join("/", f.root, at))
				if err != nil {
					continue // gone since, or a link to nowhere
				}
				dropIns[e.Name()] = FileSetting{Value: string(text), File: at}
			}
		}
	}
	for _, o := range overrides {
		dropIns[path.Base(o.Path)] = FileSetting{Value: string(o.Text), File: o.Path}
	}
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		all = append(all, parseSettings(dropIns[name].Value, dropIns[name].File)...)
	}
	return all, nil
}

// Later gives those settings of a unit's drop-ins that win over a property of the same name at each daemon-reload,
// because the name of their file sorts after the one that systemd keeps the property in (measured on 252).
func (f Files) Later(unit string) ([]FileSetting, error) {
	all, err := f.FileSettings(unit, nil)
	return slices.DeleteFunc(all, func(s FileSetting) bool {
		return !strings.HasSuffix(path.Dir(s.File), ".d") || path.Base(s.File) <= "50-"+s.Setting+".conf"
	}), err
}

// templateOf is the template of an instance: "a@.service" of "a@b.service".
func templateOf(unit string) (string, bool) {
	before, _, ok := strings.Cut(unit, "@")
	return before + "@." + unitname.TypeOf(unit), ok
}

// dropInNames are the names whose directories hold drop-ins of a unit, the nearest first (systemd.unit(5)).
func dropInNames(unit string) []string {
	names := []string{unit}
	prefix, suffix, _ := unitname.CutSuffix(unit)
	if template, ok := templateOf(unit); ok {
		names = append(names, template)
		prefix, _, _ = strings.Cut(unit, "@")
	}
	for i := strings.LastIndexByte(strings.TrimSuffix(prefix, "-"), '-'); i > 0; i = strings.LastIndexByte(prefix[:i],
		'-') {
		names = append(names, prefix[:i+1]+"."+suffix)
	}
	return append(names, suffix)
}

// UnitLines gives the lines of a unit file as systemd joins them, each without blanks around it and with the offset at
// which it begins: one that ends in a backslash goes on in the next, also over comments between the two; comments and
// empty lines are left out (systemd.syntax(7), config_parse in systemd's src/shared/conf-parser.c).
//
// go-systemd's unit.Deserialize does not serve: it takes a comment between continued lines for a part of the value,
// fails at the line behind it, and knows no lines.
func UnitLines(text string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		rest := strings.TrimPrefix(text, byteOrderMark)
		begin, offset := 0, len(text)-len(rest)
		var joined strings.Builder // what went on so far
		for raw := range strings.Lines(rest) {
			line := strings.TrimLeft(strings.TrimRight(raw, "\r\n"), " \t")
			start := offset + len(raw) - len(strings.TrimLeft(raw, " \t"))
			offset += len(raw)
			if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
				continue
			}
			if joined.Len() == 0 {
				begin = start
			}
			if slashes := len(line) - len(strings.TrimRight(line, `\`)); slashes%2 == 1 { // the last is not escaped
				joined.WriteString(line[:len(line)-1] + " ")
				continue
			}
			if joined.Len() > 0 {
				line = joined.String() + line
				joined.Reset()
			}
			if line = strings.TrimSpace(line); line != "" && !yield(begin, line) {
				return
			}
		}
		if line := strings.TrimSpace(joined.String()); line != "" {
			yield(begin, line)
		}
	}
}

const byteOrderMark = "\ufeff"

// UnitAssignment splits a line of a unit file at its first equals sign; ok is false where there is none.
func UnitAssignment(line string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(line, "=")
	return strings.TrimSpace(name), strings.TrimSpace(value), ok
}

// parseSettings reads the assignments of a unit file. Sections that begin with X- are not for systemd
// (systemd.unit(5)).
func parseSettings(text, file string) (all []FileSetting) {
	own := true
	for _, line := range UnitLines(text) {
		if strings.HasPrefix(line, "[") {
			own = !strings.HasPrefix(line, "[X-")
			continue
		}
		if name, value, ok := UnitAssignment(line); ok && own {
			all = append(all, FileSetting{name, value, file})
		}
	}
	return all
}

// ParseBytes reads an amount of memory as a unit file has it: "300M" by 1024, "20%" of total, "infinity"; ok is false
// for no limit and for what cannot be read.
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
