package usage

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are those of verbs that have none beside their code, by the words behind the program's name.
var examples = map[string]string{
	"agent": `  systemctl enable --now bulkhead     the agent as a service
  bulkhead agent                      in the foreground, for a host without a service manager`,
	"apply": `  bulkhead apply --dry-run                          what it would do
  bulkhead apply --reason "first policy"
  bulkhead apply --confirm-within 5m                undone after 5 minutes, unless "bulkhead confirm" comes before
  bulkhead apply --canary reports --canary-for 2m   one group first`,
	"advise list": `  bulkhead advise list`,
	"advise show": `  bulkhead advise show MEM-12`,
	"bench": `  bulkhead bench list       which proofs there are
  bulkhead bench demo       a MariaDB alone, beside hogs, and beside the same hogs under a policy
  bulkhead bench all --rounds 2 --out /var/tmp/proof`,
	"bench all": `  bulkhead bench all --rounds 2 --out /var/tmp/proof
  bulkhead bench all --only demo,backup --rounds 5 --document proof.md
                            both of them anew in a document that has more`,
	"bench compare":  `  bulkhead bench compare old.json new.json`,
	"bench document": `  bulkhead bench document --into proof.md /var/tmp/proof/*.json`,
	"bench list":     `  bulkhead bench list`,
	"check": `  bulkhead check
  bulkhead check --policy policy.yaml     a file that is not in force yet`,
	"explain": `  bulkhead explain 4711
  bulkhead explain 4711 --watch 10s       which limit holds it back, over 10 seconds`,
	"export": `  bulkhead --policy policy.yaml export slice --into /etc/systemd/system
  bulkhead --policy policy.yaml export cgconfig > cgconfig.conf`,
	"export cgconfig": `  bulkhead export cgconfig --policy policy.yaml > cgconfig.conf`,
	"export slice":    `  bulkhead export slice --into /etc/systemd/system`,
	"freeze":          `  bulkhead freeze reports --for 10m --reason "the month is being closed"`,
	"help": `  bulkhead help apply
  bulkhead apply --help     the same`,
	"set": `  bulkhead set reports:cpu.limit=1 --for 2h --reason "month end"
  bulkhead set reports:io.read.bandwidth=20MB/s --on /var/lib/mysql`,
	"verify": `  bulkhead verify
  bulkhead verify --probe --dry-run mysql3306
  bulkhead verify --probe mysql3306
  bulkhead verify --probe --inside --peer 192.0.2.7:5201 reports`,
	"import": `  bulkhead import cgconfig /etc/cgconfig.conf /etc/cgconfig.d \
    --rules /etc/cgrules.conf > policy.yaml
  bulkhead import slice /etc/systemd/system/scylla-server.slice \
    > policy.yaml
  bulkhead --policy policy.yaml check`,
	"confirm": `  bulkhead apply --confirm-within 5m
  bulkhead confirm`,
	"discover": `  bulkhead discover         engines, helpers, disks and what can be limited
  bulkhead discover disks   filesystems down to the disks, and which files of each database land where
  bulkhead discover disks --measure /data
                            what the disks below a path, or a device, can do: a short load, after saying what it does`,
	"run": `  bulkhead run reports --user report -- psql -f month.sql
  bulkhead run batch -- nice tar czf /backup/x.tgz /srv/x`,
	"history": `  bulkhead history
  bulkhead history --long   with every value before and after`,
	"import berx": `  bulkhead import berx limits.json > policy.yaml`,
	"import cgconfig": `  bulkhead import cgconfig /etc/cgconfig.conf --rules /etc/cgrules.conf \
    > policy.yaml`,
	"import cgrules": `  bulkhead import cgrules /etc/cgrules.conf > policy.yaml`,
	"import limits":  `  bulkhead import limits > policy.yaml`,
	"import slice":   `  bulkhead import slice /etc/systemd/system/reports.slice > policy.yaml`,
	"move": `  bulkhead move reports 4711 --tree --for 2h     with all descendants, for two hours
  bulkhead move --back 4711                      the rules place it again`,
	"notes": `  bulkhead notes
  bulkhead notes --policy policy.yaml     of a file that is not in force yet`,
	"plan": `  bulkhead plan             by group, a line for each value
  bulkhead plan --diff      the files now and then, as diff -u prints them
  bulkhead plan --long      every step, with its reason and its undo
  bulkhead plan --at "2026-12-31 22:00" --policy policy.yaml
  bulkhead plan --exit-code > /dev/null || echo "there is something to do"`,
	"release": `  bulkhead release reports        the limits of one group
  bulkhead release --all          the emergency exit: give the host back`,
	"rollback": `  bulkhead rollback               undo an interrupted change, or go one revision back
  bulkhead rollback --to 3        back to revision 3 of "bulkhead history"`,
	"schedule":          `  bulkhead schedule list`,
	"schedule list":     `  bulkhead schedule list`,
	"schedule simulate": `  bulkhead schedule simulate --days 7`,
	"schema":            `  bulkhead schema > policy.schema.json     for an editor that completes keys`,
	"status": `  bulkhead status
  bulkhead status mysql3306     each limit and process of one group
  bulkhead status --watch       again and again, until Ctrl-C
  bulkhead status --check       for monitoring: one line and an exit code`,
	"thaw":          `  bulkhead thaw reports`,
	"tune apply":    `  bulkhead tune apply MEM-12 --confirm-within 10m`,
	"tune plan":     `  bulkhead tune plan --severity high`,
	"tune rollback": `  bulkhead tune rollback MEM-12`,
	"tune status":   `  bulkhead tune status`,
	"unset":         `  bulkhead unset reports:cpu.limit`,
	"version": `  bulkhead version
  bulkhead version --json`,
}

// Exemplify gives every verb below a command the examples of the table, unless it has its own.
func Exemplify(c *cobra.Command) {
	for _, verb := range c.Commands() {
		if _, words, _ := strings.Cut(verb.CommandPath(), " "); verb.Example == "" {
			verb.Example = examples[words]
		}
		Exemplify(verb)
	}
}

// Ends says whether a verb ends by itself, so that who waits for it wants to know for how long.
func Ends(c *cobra.Command) bool {
	verb := c
	for verb.HasParent() && verb.Parent().HasParent() {
		verb = verb.Parent()
	}
	switch verb.Name() {
	case "agent", "bench", "freeze", "run", "serve", "top", "watchdog", "probe-load", "__complete":
		return false
	}
	if measures := c.Flags().Lookup("bench"); measures != nil && measures.Changed {
		return false // it shows its own progress
	}
	watches := c.Flags().Lookup("watch")
	return watches == nil || watches.Value.Type() != "bool" || !watches.Changed
}
