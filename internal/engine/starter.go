package engine

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// starterHelpers are commented examples of what usually runs beside an engine.
var starterHelpers = map[string][]string{
	Cassandra:  {starterBackup, starterTool},
	ClickHouse: {starterBackup},
	Etcd:       {starterBackup},
	MongoDB:    {starterBackup, starterExporter},
	MySQL:      {starterBackup, starterExporter, starterTool},
	Oracle:     {starterBackup},
	PostgreSQL: {starterBackup, `vacuum: {role: helper, match: [{engine: postgresql, part: autovacuum}]}`,
		starterExporter},
	Redis:    {starterExporter},
	ScyllaDB: {`agents: {role: helper, match: [{helper: agent}], cpu: {limit: 0.5}}`, starterTool},
}

// A backup that reads 50 MB/s is through with 1 TB in under 6 hours.
const (
	starterBackup = `backup: {role: helper, match: [{helper: backup}], cpu: {limit: 1}, ` +
		`io: [{read: {bandwidth: 50MB/s}}]}`
	starterExporter = `exporter: {role: helper, match: [{helper: exporter}], cpu: {limit: 0.25}, memory: {max: 256MiB}}`
	starterTool     = `tools: {role: helper, match: [{helper: tool}], cpu: {limit: 0.5}}`
)

// Starter returns a policy for the instances, as YAML: a template for each engine among them, with the role that sets
// weights and without a limit, and helpers as comments. It changes who comes first under contention and takes nothing
// away. Limits that fit a host of so many CPUs and so much memory, bytes, are comments. held is what memory an instance
// holds now, bytes; nil where that is not known.
func Starter(instances []Instance, cpus int, memory int64, held func(Instance) int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# A first policy for bulkhead: one group for each database instance on this host.
#
# The role "database" gives each group the same large weight, which counts only when the host is
# busy. Limits are comments that fit this host (%d CPUs, %s of memory): uncomment those you want.
# Try it:  bulkhead check  and  bulkhead plan  change nothing.
#
# What matches no rule competes with the databases process by process. This gathers it by session:
# host: {others: {weight: 10}}     # plan lists whom
version: 1
`, cpus, policy.Bytes(memory).Human())
	served := make(map[string][]Instance)
	for _, i := range instances {
		if !i.Sentinel() && !i.Container && i.Flavor != ASM {
			served[i.Engine] = append(served[i.Engine], i)
		}
	}
	if len(served) > 0 {
		all := 0
		for _, of := range served {
			all += len(of)
		}
		b.WriteString("groups:\n")
		for _, name := range slices.Sorted(maps.Keys(served)) {
			most := int64(0)
			for _, i := range served[name] {
				if held != nil {
					most = max(most, held(i))
				}
			}
			writeTemplate(&b, name, served[name], 0.75*float64(cpus)/float64(all), memory/2/int64(all), most)
		}
		b.WriteString("  # a neighbour that must not hurt them looks like this:\n  # ")
	} else {
		b.WriteString("# No database was found on this host. A group for other programs looks like this:\n#   ")
	}
	fmt.Fprintf(&b, "reports: {role: batch, match: [{user: report}], cpu: {limit: %.4g}, memory: {max: %s}}\n",
		rounded(float64(cpus)/4), roundMemory(memory/8))
	if len(served) == 0 {
		b.WriteString("groups: {}\n")
	}
	writeNotPlaced(&b, instances)
	return b.String()
}

// writeLimits proposes limits for each of some instances.
func writeLimits(b *strings.Builder, of []Instance, cores float64, memory, held int64) {
	on := ""
	if len(of) == 1 && starterPath.MatchString(of[0].DataDir) {
		on = "on: " + of[0].DataDir + ", "
	}
	why := "more than the instance uses now, or apply refuses"
	if held > 0 {
		// A quarter above what is held leaves room for connections and sorts.
		unit := int64(1 << 20)
		if held >= 1<<30 {
			unit = 1 << 30
		}
		memory = max(memory, (held+held/4+unit-1)/unit*unit)
		why = fmt.Sprintf("%s is held now; below that apply refuses", policy.Bytes(held).Human())
	}
	fmt.Fprintf(b, `    # cpu: {limit: %.4g}
    # memory: {max: %s}         # %s
    # io: [{%sread: {bandwidth: 200MB/s}}]
    # tasks: 4096
`, rounded(max(leastCores, cores)), roundMemory(memory), why, on)
}

// starterPath is a path that needs no quotes.
var starterPath = regexp.MustCompile(`^/[A-Za-z0-9/_.-]+$`)

// rounded is a number of cores that is easy to read, a quarter at least.
func rounded(cores float64) float64 { return max(0.25, math.Floor(cores*4)/4) }

// leastCores is the lowest limit that is proposed for a database: below it one thread alone is held back.
const leastCores = 1

// roundMemory is a size that is easy to read.
func roundMemory(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%dGiB", n>>30)
	}
	return fmt.Sprintf("%dMiB", max(64, n>>20))
}

func writeTemplate(b *strings.Builder, engine string, of []Instance, cores float64, memory, held int64) {
	name := engine + "{port}"
	for _, i := range of {
		if i.Port == 0 {
			name = "{instance}" // somebody has no port: a name that every instance has
		}
	}
	b.WriteString("  # found on this host:\n")
	for _, i := range of {
		fmt.Fprintf(b, "  #   %s\n", starterLine(i))
	}
	each := "engine: " + engine
	if user := commonUser(of); user != "" {
		b.WriteString("  # \"user\" keeps out what others start under the same name; take it away for servers of " +
			"other users\n")
		each += ", user: " + yamlform.Quote(user)
	}
	fmt.Fprintf(b, "  %q:\n    role: database\n    each: {%s}\n", name, each)
	writeLimits(b, of, cores, memory, held)
	if len(starterHelpers[engine]) == 0 {
		return
	}
	b.WriteString("    # groups:                    # helpers that share the instance's group; uncomment " +
		"those you want\n")
	for _, h := range starterHelpers[engine] {
		fmt.Fprintf(b, "    #   %s\n", h)
	}
}

// commonUser returns the user that every instance runs as, "" when they differ or a policy could not
// hold the name.
func commonUser(of []Instance) string {
	user := of[0].User
	for _, i := range of {
		if i.User != user {
			return ""
		}
	}
	if !accountName.MatchString(user) {
		return ""
	}
	return user
}

var accountName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*\$?$`)

// starterLine describes an instance in one line of a comment. Quoting keeps a line break in a path from
// ending the comment.
func starterLine(i Instance) string {
	words := []string{i.Name() + ":", cmp.Or(i.Flavor, i.Engine)}
	if i.Version != "" {
		words = append(words, i.Version)
	}
	if i.Socket != "" && i.Port == 0 {
		words = append(words, "on", strconv.Quote(i.Socket))
	}
	if i.DataDir != "" {
		words = append(words, "in", strconv.Quote(i.DataDir))
	}
	return strings.Join(append(words, "user", strconv.Quote(i.User)), " ")
}

// writeNotPlaced names what was found and gets no group.
func writeNotPlaced(b *strings.Builder, instances []Instance) {
	for _, i := range instances {
		switch {
		case i.Container:
			fmt.Fprintf(b, "# left out, it runs in a container:  %s\n", starterLine(i))
		case i.Flavor == ASM:
			fmt.Fprintf(b, "# left out, all databases of the host wait for ASM:  %s\n", starterLine(i))
		case i.Sentinel():
			fmt.Fprintf(b, "# left out, a sentinel holds no data:  %s\n", starterLine(i))
		}
	}
}
