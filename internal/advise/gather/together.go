package gather

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/host"
)

// sum adds up one fact of all instances.
type sum struct {
	total         int64
	inputs, wants []string // what is in it; what is not known
}

func sumOf(instances []fact.Object, name string, counts func(v fact.Values) bool) sum {
	var s sum
	row, _ := fact.Find(name)
	for _, inst := range instances {
		if counts != nil && !counts(inst.Values) {
			continue
		}
		v := inst.Values.Get(name)
		if n, known := v.Is.(int64); known {
			s.total += n
			s.inputs = append(s.inputs, fmt.Sprintf("%s %s (%s)", inst.Name, fact.Format(row, n), v.From))
		} else {
			s.wants = append(s.wants, fmt.Sprintf("%s: %s", inst.Name, v.Unknown))
		}
	}
	return s
}

func (s sum) from() string {
	if len(s.inputs) == 0 {
		return "no instance"
	}
	return strings.Join(s.inputs, ", ")
}

// value is the sum as far as it is known: at least so much is wanted.
func (s sum) value() fact.Value { return fact.Known(s.total, s.from()) }

// whole says that nothing is missing.
func (s sum) whole() fact.Value {
	if len(s.wants) > 0 {
		return fact.Unknown("%s", strings.Join(s.wants, "; "))
	}
	return fact.Known(true, s.from())
}

// percentOf is the share that the sum is of a fact of the host.
func (s sum) percentOf(whole fact.Value) fact.Value {
	n, known := whole.Is.(int64)
	if !known || n <= 0 {
		return fact.Unknown("the whole of which it is a share is not known")
	}
	return fact.Known(s.total*100/n, s.from())
}

// together sums up what the instances of the host want. Without them nothing is known.
func together(h *host.Host, set *fact.Set, list []server, known bool) {
	if !known {
		for _, name := range []string{"buffers_together", "buffers_percent", "buffers_known", "footprint_together",
			"footprint_percent", "footprint_known", "connections_together",
			"connections_known", "files_together", "files_known", "ports_to_reserve"} {
			set.Host["host."+name] = fact.Unknown("the instances of the host are not known")
		}
		for _, name := range hugeNames {
			set.Host[name] = fact.Unknown("the instances of the host are not known")
		}
		return
	}
	set.Host["host.ports_to_reserve"] = portsToReserve(h, set)
	memory := set.Host.Get("host.memory")
	for name, of := range map[string]string{"buffers": "instance.buffer", "footprint": "instance.footprint"} {
		s := sumOf(set.Instances, of, nil)
		set.Host["host."+name+"_together"], set.Host["host."+name+"_percent"] = s.value(), s.percentOf(memory)
		set.Host["host."+name+"_known"] = s.whole()
	}
	s := sumOf(set.Instances, "instance.connections", func(v fact.Values) bool {
		engine, _ := v.Get("instance.engine").Is.(string)
		return slices.Contains(countsConnections, engine)
	})
	set.Host["host.connections_together"], set.Host["host.connections_known"] = s.value(), s.whole()
	s = sumOf(set.Instances, "instance.files_needed", func(v fact.Values) bool {
		engine, _ := v.Get("instance.engine").Is.(string)
		return slices.Contains(countsFiles, engine)
	})
	set.Host["host.files_together"], set.Host["host.files_known"] = s.value(), s.whole()
	hugeTogether(h, set, list)

	// What is below one limited group is bounded together.
	for i, one := range list {
		if i >= len(set.Instances) {
			break
		}
		var inside []fact.Object
		for j, other := range list {
			if one.limited == "" || other.group == one.limited || strings.HasPrefix(other.group, one.limited+"/") {
				inside = append(inside, set.Instances[j])
			}
		}
		s := sumOf(inside, "instance.footprint", nil)
		v := set.Instances[i].Values
		v["instance.group_wanted"], v["instance.group_known"] = s.value(), s.whole()
		if own := v.Get("instance.footprint"); own.Unknown != "" && len(s.inputs) == 0 {
			v["instance.group_wanted"] = own
		}
	}
}

// countsConnections are the engines whose limit of connections is read.
var countsConnections = []string{"mysql", "mariadb", "percona", "postgresql", "redis", "valkey", "mongodb"}

// countsFiles are the engines for which filesNeeded has a formula.
var countsFiles = []string{"mysql", "mariadb", "percona", "redis", "valkey"}
