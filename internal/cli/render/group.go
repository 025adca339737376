package render

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/metrics"
	"bulkhead/internal/policy"
	"bulkhead/internal/verify"
)

// printTraffic prints what a group sends and receives.
func printTraffic(out io.Writer, t *api.GroupTraffic) {
	if t == nil {
		return
	}
	amount := func(c metrics.Volume) string {
		return fmt.Sprintf("%s in %d packets, now %s", policy.Bytes(c.Bytes).Human(), c.Packets, bits(c.Rate))
	}
	if t.Counted {
		Printf(out, "  network: out %s; in %s\n", amount(t.Out), amount(t.In))
	}
	for _, d := range t.On {
		if d.Policed {
			Printf(out, "    %s %s: policed, and not counted there\n", d.Device, d.Direction)
			continue
		}
		Printf(out, "    %s %s: %s; %d dropped, %s waiting\n", d.Device, d.Direction, amount(d.Volume), d.Drops,
			policy.Bytes(d.Backlog).Human())
	}
	if hint := t.OutsideHint(); hint != "" {
		Printf(out, "    %s\n", hint)
	}
}

// bits is a measured rate for people.
func bits(r int64) string {
	switch {
	case r >= 1e9:
		return fmt.Sprintf("%.2f Gbit/s", float64(r)/1e9)
	case r >= 1e6:
		return fmt.Sprintf("%.1f Mbit/s", float64(r)/1e6)
	}
	return fmt.Sprintf("%.1f kbit/s", float64(r)/1e3)
}

// printOutside lists sockets that the limits on interfaces do not see.
func printOutside(out io.Writer, sockets []inspect.OutsideSocket) {
	if len(sockets) == 0 {
		return
	}
	Println(out, "sockets that were opened before it came into the group; limits on interfaces do not hold what "+
		"they send until they are opened anew")
	for _, s := range sockets {
		text := "with " + s.Remote
		if s.Listening {
			text = "listening; what it accepts is outside, too"
		}
		if s.ByPort {
			text += "; `by: ports` in the network entry holds it"
		}
		Printf(out, "  %s %s\n", s.Local, text)
	}
}

func printGroup(out io.Writer, g api.GroupStatus, sets []api.Dataset) {
	Printf(out, "%s", g.Group)
	for _, word := range []string{string(g.Role), g.Instance} {
		if word != "" {
			Printf(out, "  %s", word)
		}
	}
	if g.Released {
		Printf(out, "  RELEASED")
	}
	Println(out)
	if g.Frozen != "" {
		Println(out, " ", frozenText(g))
	}
	if g.Released {
		Println(out, "  its limits are lifted until the next apply")
	} else {
		printUsage(out, g)
		printTraffic(out, g.Traffic)
		printEach(out, "  ZFS:", sets)
		printLimits(out, g.Limits)
	}
	if len(g.Members) == 0 {
		Println(out, "  no process now")
		return
	}
	Printf(out, "  processes: %s\n", members(g.Members, !g.Released))
}

// printLimits prints what was asked and what is in force as a table, with what there is to say about a
// limit below it. It says whether there was any.
func printLimits(out io.Writer, all []verify.Limit) bool {
	all = slices.DeleteFunc(slices.Clone(all), func(l verify.Limit) bool { return l.Default })
	if len(all) == 0 {
		return false
	}
	w := newTable(out, "  limit", "asked", "in force", "state", "from", "file")
	for _, l := range all {
		Printf(w, "  %s\t%s\t%s\t%s\t%s\t%s\n", limitName(l), asked(l), dash(l.InForce), verdict(l), l.From,
			dash(l.File))
	}
	w.end()
	for _, l := range all {
		if l.Reason != "" {
			Printf(out, "    %s: %s\n", limitName(l), l.Reason)
		}
	}
	return true
}

// asked is what was asked in the unit of what is in force, behind the policy's own words where it has others.
func asked(l verify.Limit) string {
	if l.AskedAs == "" {
		return l.Asked
	}
	if raw, _, found := strings.Cut(l.Asked, " = "); found {
		return raw + " = " + l.AskedAs
	}
	return l.AskedAs
}

// frozenText says until when a group is frozen.
func frozenText(g api.GroupStatus) string {
	if g.Overdue {
		return fmt.Sprintf("FROZEN, OVERDUE: %s was to go on at %s; `bulkhead thaw %s` ends it", g.Group, g.Frozen,
			g.Group)
	}
	return fmt.Sprintf("FROZEN: %s until %s or `bulkhead thaw %s`", g.Group, g.Frozen, g.Group)
}

// limitName is a limit with the device it is for.
func limitName(l verify.Limit) string { return keyName(l.Key, l.On) }

func keyName(key policy.Key, on string) string {
	if on == "" {
		return string(key)
	}
	return string(key) + " on " + on
}

// groupName is a group for people; the root group has no name of its own among the groups, nor has the host.
func groupName(group string, key policy.Key) string {
	if strings.HasPrefix(string(key), "host.") {
		return "(host)"
	}
	return cmp.Or(group, "(root group)")
}

// verdict is what is said on a limit in one or two words.
func verdict(l verify.Limit) string {
	switch {
	case l.OK:
		return "ok"
	case l.Void:
		return "void"
	case l.InForce != "":
		return "DIFFERS"
	}
	return "NOT ENFORCED"
}

func printUsage(out io.Writer, g api.GroupStatus) {
	u := g.Usage
	human := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return policy.Bytes(*n).Human()
	}
	Printf(out, "  cpu: user %s, system %s", seconds(u.CPU.User), seconds(u.CPU.System))
	if n := u.CPU.Periods; n != nil && *n > 0 {
		Printf(out, ", throttled in %d of %d periods for %s", *u.CPU.ThrottledPeriods, *n,
			seconds(u.CPU.Throttled))
	}
	if g.Share.Guaranteed > 0 ||
		g.Share.Against != "" { // else nothing here asks for CPU, and the group competes process by process
		Printf(out, "\n  cpu guaranteed: %.2f cores (%.0f %% of the host)", g.Share.Guaranteed, g.Share.Percent)
	}
	if g.Share.Limit > 0 {
		Printf(out, "; limit: %.2f cores", g.Share.Limit)
	}
	m := u.Memory
	Printf(out, "\n  memory: anonymous %s, file %s, shared %s, huge pages %s, swap %s", human(m.Anonymous),
		human(m.File), human(m.Shared), human(m.Huge), human(m.Swap))
	if g.MemorySource == "cgroup" {
		Printf(out, "; charged %s, peak %s", human(m.Current), human(m.Peak))
		if m.OOMKills != nil {
			Printf(out, ", OOM kills %d", *m.OOMKills)
		}
		if g.ChargedElsewhere > 1<<20 {
			Printf(out, "\n    %s more of its memory was charged before it came and stays charged there; memory "+
				"limits do not see it", policy.Bytes(g.ChargedElsewhere).Human())
		}
	} else {
		Printf(out, " (sums over the processes: no limit here needs the memory controller)")
	}
	Printf(out, "\n  tasks: %d, running now %d, in D state now %d", g.Tasks.Total, g.Tasks.Running,
		g.Tasks.Blocked)
	if g.Load != nil {
		Printf(out, "; load average %s", g.Load)
	}
	Println(out)
	for _, io := range u.IO {
		if io.ReadBytes+io.WrittenBytes > 0 {
			Printf(out, "  disk %s: read %s in %d, written %s in %d\n", io.Device, human(&io.ReadBytes), io.Reads,
				human(&io.WrittenBytes), io.Writes)
		}
	}
}

// seconds prints microseconds of CPU time.
func seconds(micros *int64) string {
	if micros == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f s", float64(*micros)/1e6)
}

// members lists processes shortly: "mariadbd 4711 (mysql), …". Those of a released group need no place.
func members(all []api.Member, governed bool) string {
	const most = 12
	var words []string
	for i, m := range all {
		if i == most {
			words = append(words, fmt.Sprintf("and %d more", len(all)-most))
			break
		}
		word := fmt.Sprintf("%s %d (%s)", m.Comm, m.PID, m.User)
		switch {
		case governed && m.Kept != "":
			word += " KEPT IN " + m.Kept
		case governed && !m.Placed:
			word += " NOT PLACED YET"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}
