package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"bulkhead/internal/cgroup"
)

// filesOf lists the files that tell fields of a version of cgroups: those of the named fields, or of all. One with a
// "*" stands for a file of each page size.
func filesOf(version int, only []string) (files []string) {
	for _, f := range Fields {
		from := f.source(version)
		if from.File == "" || len(only) > 0 && !slices.Contains(only, f.Name) {
			continue
		}
		files = append(files, from.File)
		if f.device != nil && version == 1 {
			files = append(files, from.File+recursive)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// The files of all fields, by version.
var allFiles = [...][]string{1: filesOf(1, nil), 2: filesOf(2, nil)}

// Read reads what a directory says about the use of its group. With names of fields, only the files that tell those are
// read: memory.stat and io.stat are not cheap. Errors: cgroup.ErrGone.
func Read(t *cgroup.Tree, d cgroup.Dir, only ...string) (Usage, error) {
	version := t.Version(d)
	if len(only) > 0 {
		texts, err := t.ReadMany(d, filesOf(version, only))
		return parse(version, texts), err
	}
	there, err := figureFiles(t, d, version)
	if err != nil {
		return Usage{}, err
	}
	texts, err := t.ReadMany(d, there)
	return parse(version, texts), err
}

// figureFiles lists those files of a directory that tell fields.
func figureFiles(t *cgroup.Tree, d cgroup.Dir, version int) ([]string, error) {
	there, err := t.Files(d)
	return slices.DeleteFunc(there, func(name string) bool {
		return !slices.ContainsFunc(allFiles[version], func(file string) bool { return isFile(name, file) })
	}), err
}

// ReadIO reads what was read and written so far: on v1 by the processes in d alone, on v2 by those below it too.
// Errors: cgroup.ErrGone.
func ReadIO(t *cgroup.Tree, d cgroup.Dir) ([]IO, error) {
	version := t.Version(d)
	texts, err := t.ReadMany(d, []string{ioFields[0].source(version).File, ioFields[2].source(version).File})
	return parseIO(version, texts), err
}

// isFile says whether name is the file that a row of the table names, or one of those that its "*" stands for:
// hugetlb.2MB.current, but not hugetlb.2MB.rsvd.current.
func isFile(name, file string) bool {
	before, behind, several := strings.Cut(file, "*")
	if !several {
		return name == file
	}
	size, ok := strings.CutPrefix(name, before)
	size, found := strings.CutSuffix(size, behind)
	return ok && found && size != "" && !strings.Contains(size, ".")
}

// parse makes a Usage of the texts of a directory's files, by name.
func parse(version int, texts map[string]string) Usage {
	var u Usage
	flat := map[string]map[string]int64{}
	for i := range Fields {
		f := &Fields[i]
		from := f.source(version)
		if f.value == nil || from.File == "" {
			continue
		}
		var n *int64
		text, there := texts[from.File]
		switch {
		case strings.Contains(from.File, "*"):
			for name, text := range texts {
				if isFile(name, from.File) {
					n = add(n, parseNumber(text))
				}
			}
		case !there:
		case len(from.Keys) == 0:
			n = parseNumber(text)
		default:
			if flat[from.File] == nil {
				flat[from.File] = parseFlat(text)
			}
			n = from.in(flat[from.File])
		}
		if n != nil && (from.Times != 0 || from.Per != 0) {
			*n = *n * cmp.Or(from.Times, 1) / cmp.Or(from.Per, 1)
		}
		*f.value(&u) = n
	}
	u.IO = parseIO(version, texts)
	for _, resource := range Resources {
		if p := ParsePressure(texts[resource+".pressure"]); p != (Pressure{}) {
			if u.Pressure == nil {
				u.Pressure = make(map[string]Pressure)
			}
			u.Pressure[resource] = p
		}
	}
	return u
}

// in is the value of a source in the lines of its file; nil when it is not there.
func (s Source) in(lines map[string]int64) *int64 {
	first := func(keys []string) *int64 {
		for _, key := range keys {
			if n, found := lines[key]; found {
				return &n
			}
		}
		return nil
	}
	n := first(s.Keys)
	if n == nil {
		for _, key := range s.Sum {
			n = add(n, first([]string{key}))
		}
	}
	if less := first(s.Less); n != nil && less != nil {
		return new(max(*n-*less, 0)) // the kernel's counters are not read at one instant
	}
	return n
}

// parseNumber parses a single number; nil for "max" and whatever else is none. v1 counts some
// values to 2^64-1: those beyond int64 are its largest.
func parseNumber(text string) *int64 {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil {
		return &n
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil {
		return new(int64(min(u, 1<<63-1)))
	}
	return nil
}

// parseFlat parses "name number" lines: memory.stat, cpu.stat, memory.events, pids.events, …. A line that it does not
// understand is left out, because newer kernels add lines.
func parseFlat(text string) map[string]int64 {
	stat := make(map[string]int64)
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if n := parseNumber(value); found && n != nil {
			stat[name] = *n
		}
	}
	return stat
}

// parseIO parses the counters of block devices. The files of v1 have a line for each device and direction, and sums:
//
//	8:0 Read 4096
//	8:0 Total 4096
//	Total 4096
//
// and io.stat of v2 has one for each device:
//
//	8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0
//
// Devices that did nothing are left out: v1 lists every disk there ever was.
func parseIO(version int, texts map[string]string) []IO {
	devices := map[string]*IO{}
	suffix := ""
	if _, below := texts[blkioBytes+recursive]; below && version == 1 {
		suffix = recursive
	}
	for _, f := range ioFields {
		from := f.source(version)
		for line := range strings.Lines(texts[from.File+suffix]) {
			words := strings.FieldsFunc(line, func(r rune) bool { return r == '=' || unicode.IsSpace(r) })
			i := slices.Index(words, from.Keys[0])
			if i < 1 || i+1 == len(words) || len(cgroup.Devices(words[0])) == 0 {
				continue // another direction, a sum, or a device that says "Unknown"
			}
			if n := parseNumber(words[i+1]); n != nil && *n != 0 {
				if devices[words[0]] == nil {
					devices[words[0]] = &IO{Device: words[0]}
				}
				*f.device(devices[words[0]]) = *n
			}
		}
	}
	var all []IO
	for _, device := range cgroup.Devices(strings.Join(slices.Collect(maps.Keys(devices)), "\n")) {
		all = append(all, *devices[device])
	}
	return all
}

// ParsePressure parses a *.pressure file:
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=0
func ParsePressure(text string) Pressure {
	var p Pressure
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		var s Stall
		for _, field := range fields[1:] {
			name, value, _ := strings.Cut(field, "=")
			percent, err := strconv.ParseFloat(value, 64)
			if err != nil {
				continue
			}
			switch name {
			case "avg10":
				s.Avg10 = percent
			case "avg60":
				s.Avg60 = percent
			case "avg300":
				s.Avg300 = percent
			case "total":
				if n := parseNumber(value); n != nil {
					s.Total = *n
				}
			}
		}
		switch fields[0] {
		case "some":
			p.Some = &s
		case "full":
			p.Full = &s
		}
	}
	return p
}
