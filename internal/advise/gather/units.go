package gather

import (
	"context"
	"errors"
	"math"
	"path"
	"strings"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/linux/procfs"
)

// unitTime is how long systemd may take to answer for one instance.
const unitTime = 2 * time.Second

// unitFacts are those of the service of systemd that runs a process, and of the slices above it.
func unitFacts(ctx context.Context, o Options, p *procfs.Process, v fact.Values) {
	units, limit := o.Units, o.in(unitTime)
	names := []string{"instance.start_timeout", "instance.stop_timeout", "instance.oomd", "instance.unit_thp"}
	unknown := func(reason string) {
		for _, n := range names {
			v[n] = fact.Unknown("%s", reason)
		}
	}
	service, slices := unitsOf(p)
	switch {
	case service == "":
		unknown("no service of systemd runs it")
		return
	case units == nil:
		unknown("systemd was not asked")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got, err := units(ctx, service, "TimeoutStartUSec", "TimeoutStopUSec", "ManagedOOMPreference",
		"ManagedOOMMemoryPressure", "ManagedOOMSwap", "MemoryTHP")
	if errors.Is(err, context.DeadlineExceeded) {
		unknown("systemd gave no answer within " + limit.String())
		return
	}
	if err != nil {
		unknown(files.Because(err).Unknown)
		return
	}
	v["instance.start_timeout"] = seconds(got["TimeoutStartUSec"], service+" TimeoutStartSec")
	v["instance.stop_timeout"] = seconds(got["TimeoutStopUSec"], service+" TimeoutStopSec")
	thp, from := "", "this systemd has no MemoryTHP"
	if is, has := got["MemoryTHP"].(string); has {
		thp, from = is, service+" MemoryTHP"
	}
	v["instance.unit_thp"] = fact.Known(thp, from)
	killers := []string{}
	for _, unit := range append([]string{service}, slices...) {
		of := got
		if unit != service {
			if of, err = units(ctx, unit, "ManagedOOMMemoryPressure", "ManagedOOMSwap"); err != nil {
				v["instance.oomd"] = files.Because(err)
				return
			}
		}
		if of["ManagedOOMMemoryPressure"] == "kill" || of["ManagedOOMSwap"] == "kill" {
			killers = append(killers, unit)
		}
	}
	if got["ManagedOOMPreference"] == "omit" {
		killers = []string{}
	}
	v["instance.oomd"] = fact.Known(killers, "ManagedOOMMemoryPressure, ManagedOOMSwap of "+
		strings.Join(append([]string{service}, slices...), ", ")+", ManagedOOMPreference of "+service)
}

// unitsOf are the service of a process and the slices above it, the nearest first.
func unitsOf(p *procfs.Process) (service string, slices []string) {
	for _, where := range p.Cgroups {
		var above []string
		found := ""
		for at := path.Clean(where); at != "/" && at != "."; at = path.Dir(at) {
			switch name := path.Base(at); {
			case strings.HasSuffix(name, ".service"):
				found = name
			case strings.HasSuffix(name, ".slice") && found != "":
				above = append(above, name)
			}
		}
		if found != "" {
			service, slices = found, above
		}
	}
	return service, slices
}

// seconds is a time that systemd has in microseconds; the largest number is no limit.
func seconds(is any, from string) fact.Value {
	n, ok := is.(uint64)
	switch {
	case !ok:
		return fact.Unknown("systemd does not tell %s", from)
	case n == math.MaxUint64:
		return fact.Known(int64(fact.Unlimited), from)
	}
	return fact.Known(int64(n/1e6), from)
}
