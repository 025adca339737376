package systemd

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/idset"
)

// Infinity is how D-Bus writes "no limit", and for a weight "not set".
const Infinity uint64 = math.MaxUint64

// weightIdle is how CPUWeight=idle travels.
const weightIdle uint64 = 0

// Property is one property of a unit with its value as D-Bus types it: bool, string, uint64, []byte, []string or
// []DeviceValue.
type Property struct {
	Name  string
	Value any
}

// DeviceValue is one line of a property that holds a line per device. Path is a node in /dev, or any file on it.
type DeviceValue struct {
	Path  string
	Value uint64
}

// Form is how a property's value is written and read.
type Form string

// Forms. The text form is that of our own tables: "max" is no limit, "" not set.
const (
	FormFlag    Form = "flag"    // b: "yes", "no"
	FormWord    Form = "word"    // s
	FormNumber  Form = "number"  // t: "4096", "max"
	FormBytes   Form = "bytes"   // t
	FormMicros  Form = "µs"      // t
	FormWeight  Form = "weight"  // t: "1" to "10000", "idle", ""
	FormSet     Form = "set"     // ay, one bit for each CPU or node: "0-3,8"; "" is all
	FormDevices Form = "devices" // a(st): "/dev/sda 1048576", one a line
)

// Signature gives the D-Bus type of a form.
func (f Form) Signature() string {
	switch f {
	case FormFlag:
		return "b"
	case FormWord:
		return "s"
	case FormSet:
		return "ay"
	case FormDevices:
		return "a(st)"
	default:
		return "t"
	}
}

// Encode turns the text of a value into what SetProperties sends, rounded as systemd would round it at a reload. What
// systemd would refuse is refused here, with the range.
func (r *Row) Encode(text string) (Property, error) {
	value, err := r.encode(strings.TrimSpace(text))
	if err != nil {
		return Property{}, fmt.Errorf("encode %s=%q: %w", r.Name, text, err)
	}
	return Property{Name: r.Name, Value: value}, nil
}

func (r *Row) encode(text string) (any, error) {
	switch r.Form {
	case FormFlag:
		switch text {
		case "yes", "no":
			return text == "yes", nil
		}
		return nil, fmt.Errorf("want yes or no")
	case FormWord:
		if !slices.Contains(r.Words, text) {
			return nil, fmt.Errorf("want one of %s", strings.Join(r.Words, ", "))
		}
		return text, nil
	case FormSet:
		if text == "" {
			return []byte{}, nil
		}
		set, err := idset.Parse(text)
		if err != nil {
			return nil, err
		}
		return encodeSet(set)
	case FormDevices:
		return r.encodeDevices(text)
	}
	return r.encodeNumber(text)
}

func (r *Row) encodeNumber(text string) (uint64, error) {
	switch {
	case text == "max" && r.Form != FormWeight, text == "" && r.Form == FormWeight, text == "" && r.Unset:
		return Infinity, nil
	case text == "idle" && r.IdleSince > 0:
		return weightIdle, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("want a whole number")
	}
	if n < r.Min || n > r.Max {
		return 0, fmt.Errorf("want %d to %d", r.Min, r.Max)
	}
	if r.Step > 1 {
		n = max((n/r.Step+(n%r.Step+r.Step/2)/r.Step)*r.Step, r.Step)
	}
	return n, nil
}

func (r *Row) encodeDevices(text string) ([]DeviceValue, error) {
	lines := []DeviceValue{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return nil, fmt.Errorf("line %q: want a path and a number", line)
		}
		name := line[:at]
		if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsAny(name, "\x00\t") {
			return nil, fmt.Errorf("line %q: want a normalized absolute path", line)
		}
		n, err := r.encodeNumber(line[at+1:])
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		if slices.ContainsFunc(lines, func(d DeviceValue) bool { return d.Path == name }) {
			return nil, fmt.Errorf("line %q: a second value for the device", line)
		}
		lines = append(lines, DeviceValue{name, n})
	}
	return lines, nil
}

// maxID bounds the bit sets: more CPUs than any kernel is built for.
const maxID = 1<<16 - 1

func encodeSet(set idset.Set) ([]byte, error) {
	if len(set) == 0 {
		return []byte{}, nil
	}
	if last := set[len(set)-1]; last > maxID {
		return nil, fmt.Errorf("number %d is too large", last)
	}
	bits := make([]byte, set[len(set)-1]/8+1)
	for _, id := range set {
		bits[id/8] |= 1 << (id % 8)
	}
	return bits, nil
}

// Decode turns what systemd says into the text of a value, the inverse of Encode.
func (r *Row) Decode(value any) (string, error) {
	switch v := value.(type) {
	case bool:
		if r.Form == FormFlag {
			return map[bool]string{true: "yes", false: "no"}[v], nil
		}
	case string:
		if r.Form == FormWord {
			return v, nil
		}
	case uint64:
		if r.Form.Signature() == "t" {
			return r.decodeNumber(v), nil
		}
	case []byte:
		if r.Form == FormSet {
			return decodeSet(v).String(), nil
		}
	case []DeviceValue:
		if r.Form == FormDevices {
			var lines []string
			for _, d := range v {
				lines = append(lines, d.Path+" "+r.decodeNumber(d.Value))
			}
			return strings.Join(lines, "\n"), nil
		}
	}
	return "", fmt.Errorf("decode %s: systemd gave a %T, want the type %q", r.Name, value, r.Form.Signature())
}

func (r *Row) decodeNumber(n uint64) string {
	switch {
	case n == Infinity && (r.Form == FormWeight || r.Unset):
		return ""
	case n == Infinity:
		return "max"
	case n == weightIdle && r.IdleSince > 0:
		return "idle"
	}
	return strconv.FormatUint(n, 10)
}

func decodeSet(bits []byte) idset.Set {
	var ids []int
	for i, b := range bits {
		for bit := range 8 {
			if b&(1<<bit) != 0 {
				ids = append(ids, i*8+bit)
			}
		}
	}
	return idset.New(ids...)
}

// Lines gives what a unit file says for a value, for a drop-in: "MemoryHigh=104857600". A list is reset first.
func (r *Row) Lines(text string) ([]string, error) {
	p, err := r.Encode(text)
	if err != nil {
		return nil, err
	}
	switch v := p.Value.(type) {
	case uint64:
		return []string{r.Setting + "=" + r.settingNumber(v)}, nil
	case []DeviceValue:
		lines := []string{r.Setting + "="}
		for _, d := range v {
			lines = append(lines, r.Setting+"="+quoteSetting(d.Path)+" "+r.settingNumber(d.Value))
		}
		return lines, nil
	case []byte:
		// An empty assignment resets, so that it goes before: lists add up otherwise.
		set := decodeSet(v).String()
		if set == "" {
			return []string{r.Setting + "="}, nil
		}
		return []string{r.Setting + "=", r.Setting + "=" + set}, nil
	}
	return []string{r.Setting + "=" + strings.TrimSpace(text)}, nil
}

func (r *Row) settingNumber(n uint64) string {
	switch {
	case r.Setting == "CPUQuota": // a percentage of one CPU there
		if n == Infinity {
			return ""
		}
		return fmt.Sprintf("%d%%", n/r.Step)
	case n == Infinity && (r.Form == FormWeight || r.Unset):
		return ""
	case n == Infinity:
		return "infinity"
	case n == weightIdle && r.IdleSince > 0:
		return "idle"
	case r.Form == FormMicros:
		return strconv.FormatUint(n, 10) + "us"
	}
	return strconv.FormatUint(n, 10)
}

// quoteSetting writes a path so that specifiers and blanks in it mean themselves.
func quoteSetting(name string) string {
	name = strings.ReplaceAll(name, "%", "%%")
	if strings.ContainsAny(name, " \"\\") {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name) + `"`
	}
	return name
}
