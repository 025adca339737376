package attribution

import (
	"fmt"
	"strconv"
	"strings"
)

// notes are what a reader should know beside the figures.
func notes(w *Window, v *Group) []string {
	all := []string{}
	for i := range w.Groups {
		if strings.HasPrefix(w.Groups[i].Name, v.Name+"/") && len(v.Pressure) > 0 {
			all = append(all, "waiting for disks and memory is that of "+v.Name+" and of the groups below it together")
			break
		}
	}
	for _, h := range w.holders(v) {
		if strings.HasPrefix(h.Key, "network.") && w.Host.Links == nil {
			all = append(all, fmt.Sprintf("its limit %s is used up (%s); how long it waits for that is not counted",
				h.Name(), h.How))
		}
	}
	return all
}

// Title is the resource as people call it.
func (r *Resource) Title() string {
	switch r.Name {
	case "cpu":
		return "CPUs"
	case "disk":
		return "disks"
	}
	return r.Name
}

func (w *Window) group(name string) *Group {
	for i := range w.Groups {
		if w.Groups[i].Name == name {
			return &w.Groups[i]
		}
	}
	return &Group{Name: name}
}

func cores(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

func counted(n float64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.FormatFloat(n, 'f', 0, 64) + " " + noun + "s"
}

// Percent is a part of one, with a digit behind the point where it has one before: "9.8 %", "45 %".
func Percent(part float64) string {
	if part >= 0.0995 {
		return strconv.FormatFloat(100*part, 'f', 0, 64) + " %"
	}
	return strconv.FormatFloat(100*part, 'f', 1, 64) + " %"
}

func size(v float64) string {
	for _, u := range []struct {
		name  string
		bytes float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if v >= u.bytes {
			return strconv.FormatFloat(v/u.bytes, 'f', 1, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + " B"
}

// holds says which limits of a kind hold v back, its own and those of groups above it, and the command that would ease
// the first; "" where none does.
func (w *Window) holds(v *Group, kind string) (did, command string) {
	var texts []string
	for _, h := range w.holders(v) {
		if !strings.HasPrefix(h.Key, kind) {
			continue
		}
		text := h.Name() + "=" + h.Held + " " + h.How
		if h.Group != v.Name {
			text = h.Group + ": " + text
		}
		texts = append(texts, text)
		if command == "" {
			command = h.Command
		}
	}
	return strings.Join(texts, "; "), command
}
