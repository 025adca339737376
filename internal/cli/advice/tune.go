package advice

import (
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/linux/tunable/hugepool"
	"bulkhead/internal/linux/tunable/mounted"
	"bulkhead/internal/linux/tunable/service"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// TuneCommand gives the verb.
func TuneCommand(s Session) *cobra.Command {
	c := &cobra.Command{
		Use:   "tune VERB",
		Short: "follow advice: settings of the host that are kept, and taken back",
		Long: `tune follows what advise says where that is a setting of the running kernel (a sysctl, a file below
/sys, the queue of a disk), of the service of a database, of a mount, of the kernel command line, or one of MySQL,
MariaDB and PostgreSQL without which data can be lost. A setting is in force at once and after each boot (one of the
kernel command line after the next boot, one of MySQL when it starts next), and the agent keeps it; no service is
restarted. Its old value is recorded before, and rollback gives it back, after a reboot too. What else advise says is
listed by plan and left to you.`,
		Example: `  bulkhead tune plan                               what can be set, and what is left to you
  bulkhead tune apply MEM-01 MEM-12 --dry-run
  bulkhead tune apply --severity high --confirm-within 10m
  bulkhead tune apply IO-01 --bench                measured before and after, taken back where it is worse
  bulkhead tune status                             what is set, by whom, and what it was
  bulkhead tune rollback MEM-01                    as it was before`,
	}
	c.AddCommand(tunePlanCmd(s), tuneApplyCmd(s), tuneRollbackCmd(s), tuneStatusCmd(s))
	return c
}

// OutsideCommand is for the program itself: an agent in a sandbox has systemd start it.
func OutsideCommand(look func() (*transaction.Controller, error)) *cobra.Command {
	return &cobra.Command{
		Use: transaction.OutsideVerb, Short: "write what the agent's sandbox forbids", Hidden: true,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := look()
			if err != nil {
				return err
			}
			defer c.Close()
			return c.WriteOutside(cmd.Context(), args[0])
		},
	}
}

// tuning is what `tune plan` prints for a finding.
type tuning struct {
	Rule     string        `json:"rule"`
	Severity string        `json:"severity"`
	Title    string        `json:"title"`
	On       []string      `json:"on"` // instances; of the host none
	Settings []state.Tuned `json:"-"`
	Sets     []string      `json:"sets"` // "vm.swappiness = 1"
	// ByHand is the change that tune does not make; "" where it makes it.
	ByHand string `json:"by_hand,omitempty"`
	Cost   string `json:"cost,omitempty"`
	// Besides is what would belong to the same change and is left to the DBA.
	Besides []string       `json:"besides,omitempty"`
	Losers  []advise.Loser `json:"losers"`
}

// tunings asks the host and the rules; of the rules that are named, or of all.
func (s Session) tunings(cmd *cobra.Command, names []string, o *options) ([]tuning, error) {
	severity := o.severity
	if severity != "" && !slices.Contains(rule.Severities, severity) {
		return nil, usage.Errorf(cmd, "%q is no severity: critical, high, medium, low and info are", severity)
	}
	rules, err := rule.With(siteRules)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, known := rules.Find(name); !known {
			return nil, usage.Errorf(cmd, "there is no rule %q; `bulkhead advise list` lists them", name)
		}
	}
	logins, err := usage.Logins(cmd, o.dsn)
	if err != nil {
		return nil, err
	}
	c, err := s.Look()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	facts := factsOf(cmd, c, logins, o.wait)
	rep := advise.Run(rules, facts,
		advise.Options{Severity: severity, Today: time.Now().Format(time.DateOnly)})
	for _, n := range rep.Notes { // what was not looked at is not set
		render.Printf(cmd.ErrOrStderr(), "note: %s\n", n)
	}
	for _, u := range rep.Undecided {
		if isNamed(names, u.Rule) {
			printUndecided(cmd.ErrOrStderr(), "not decided: ", u)
		}
	}
	all := []tuning{}
	info, _ := c.Host.MemInfo() // of none there is no pool either
	on := settable{page: info["Hugepagesize"], atBoot: o.atBoot, has: func(name string) bool {
		return tunable.Host{Root: c.Host.Root}.Has(cmd.Context(), name)
	}, room: func(pool string, pages int64) error { return hugepool.Room(c.Host.Root, pool, pages) }}
	on.takers, on.place = takers(facts), placesOf(c.Host)
	on.shmGroup, _ = facts.Host.Get("host.huge_shm_group").Is.(int64)
	for _, f := range rep.Findings {
		if f.Change.Key == shmGroupSysctl && !slices.Contains(on.shmGroups, f.Change.Value) {
			on.shmGroups = append(on.shmGroups, f.Change.Value)
		}
	}
	asked := slices.DeleteFunc(slices.Clone(rep.Findings), func(f advise.Finding) bool {
		return len(names) > 0 && !isNamed(names, f.Rule)
	})
	if slices.ContainsFunc(asked, func(f advise.Finding) bool { return f.Change.Key == hugepool.Sysctl }) {
		if on.limits, err = limitsOfGroups(cmd, c, facts, on.page); err != nil {
			return nil, err
		}
	}
	for _, f := range asked {
		all = append(all, tuningOf(f, on).with(rep.Findings, on))
	}
	return all, nil
}

// isNamed says whether somebody named a rule, in letters of either case.
func isNamed(names []string, id string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, id) })
}

// settable says what of a finding can be set on a host.
type settable struct {
	has  func(name string) bool // whether the host has what a setting is kept in
	page int64                  // the default size of huge pages, in bytes
	// room says in the words of an error that a pool of so many huge pages does not fit into the memory now.
	room   func(pool string, pages int64) error
	atBoot bool // the pool of huge pages is to be set aside at boot
	// limits are those of groups that go with the pool of huge pages.
	limits []state.Tuned
	takers []string // instances whose settings ask for pages of the pool
	// place is where a setting of an instance can stand in an option file of bulkhead's own.
	place func(instance, name, value string) settings.Place
	// shmGroup is vm.hugetlb_shm_group now, 0 for none, and shmGroups the groups that databases want there.
	shmGroup  int64
	shmGroups []string
}

// tuningOf is what can be set of a finding.
func tuningOf(f advise.Finding, on settable) tuning {
	t := tuning{Rule: f.Rule, Severity: f.Severity, Title: f.Title, On: render.OrEmpty(f.On), Sets: []string{},
		Cost: f.Change.Cost, Losers: f.Losers}
	names, value := []string{f.Change.Key}, f.Change.Value
	switch f.Change.Class {
	case rule.ClassSysctl:
		if f.Change.Key == hugepool.Sysctl {
			return t.pool(f, on)
		}
		if t.ByHand = on.shmGroupTaken(f); t.ByHand != "" {
			return t
		}
	case rule.ClassQueue:
		names = []string{tunable.QueueName(strings.ReplaceAll(f.Change.Disk, "/", "!"), f.Change.Key)}
	case rule.ClassSysfs:
		if strings.ContainsAny(f.Change.Key, "*?[") {
			names, _ = filepath.Glob(f.Change.Key) // no such file is nothing to set
		}
	case rule.ClassUnit:
		names = []string{service.Prefix + f.Change.Unit + "/" + f.Change.Key}
	case rule.ClassMount:
		names = nil
		for _, point := range f.On {
			if name, word, known := mounted.Name(point, f.Change.Value); known {
				names, value = append(names, name), word
			}
		}
	case rule.ClassCmdline:
		names = nil
		if name, word, known := bootline.Name(value); known {
			names, value = []string{name}, word
		}
	case rule.ClassEngine:
		return t.option(f, on)
	default:
		names = nil
	}
	for _, name := range names {
		t.set(name, value, on)
	}
	if len(t.Settings) == 0 {
		t.ByHand = changeOf(f.Change)
	}
	return t
}

// set adds a setting where the host has what it is kept in.
func (t *tuning) set(name, value string, on settable) {
	if tunable.Check(name, value) == nil && on.has(name) {
		t.Settings = append(t.Settings, state.Tuned{Rule: t.Rule, Name: name, Value: value})
		t.Sets = append(t.Sets, name+" = "+value)
	}
}

// pool is what can be set of a finding about the pool of huge pages: the pool itself, that of each node where the value
// says so ("0:512,1:256"), or the kernel command line.
func (t tuning) pool(f advise.Finding, on settable) tuning {
	switch value := f.Change.Value; {
	case on.atBoot:
		t.set(tunable.PoolAtBoot, value, on)
	case strings.Contains(value, ":"):
		for part := range strings.SplitSeq(value, ",") {
			number, pages, _ := strings.Cut(part, ":")
			node, _ := strconv.Atoi(number)
			t.set(hugepool.OnNode(node, on.page), pages, on)
		}
	default:
		t.set(f.Change.Key, value, on)
	}
	if !on.atBoot {
		for _, s := range t.Settings { // one that cannot be set would have all the others undone
			pages, _ := strconv.ParseInt(s.Value, 10, 64)
			if err := on.room(s.Name, pages); err != nil {
				t.Settings, t.Sets, t.ByHand = nil, []string{}, err.Error()
				return t
			}
		}
	}
	if len(t.Settings) > 0 {
		return t
	}
	t.ByHand = changeOf(f.Change)
	if on.atBoot && f.Change.Value != "" {
		t.ByHand = "add hugepages=" + f.Change.Value + " to the kernel command line, and boot the host"
	}
	return t
}

func tunePlanCmd(s Session) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "plan [RULE…]",
		Short: "what apply would set, and what of the advice is left to you",
		Args:  cobra.ArbitraryArgs,

		ValidArgsFunction: completeRules(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := s.tunings(cmd, args, &o)
			if err != nil {
				return err
			}
			return s.Print(all, func() { printTunings(s.Out, all) })
		},
	}
	o.flags(c)
	return c
}

// options are the flags of plan and apply.
type options struct {
	severity string
	dsn      []string
	atBoot   bool
	wait     time.Duration
}

func (o *options) flags(c *cobra.Command) {
	severityFlag(c, &o.severity)
	waitFlag(c, &o.wait)
	c.Flags().StringArrayVar(&o.dsn, "dsn", nil, usage.LoginsHelp)
	c.Flags().BoolVar(&o.atBoot, "at-boot", false, "have the pool of huge pages set aside by the kernel command "+
		"line, at the next boot, instead of now")
}

func severityFlag(c *cobra.Command, severity *string) {
	c.Flags().StringVar(severity, "severity", "", "only from this on: critical, high, medium, low or info")
}

func printTunings(out io.Writer, all []tuning) {
	settable := slices.DeleteFunc(slices.Clone(all), func(t tuning) bool { return t.ByHand != "" })
	for _, t := range settable {
		render.Printf(out, "%s  %s  %s\n", strings.ToUpper(t.Severity), t.Rule, t.Title)
		printOn(out, t.On)
		for _, set := range t.Sets {
			render.Printf(out, "  set     %s\n", set)
		}
		for _, b := range t.Besides {
			render.Printf(out, "  by hand %s\n", b)
		}
		if t.Cost != "" {
			render.Printf(out, "  cost    %s\n", t.Cost)
		}
		for _, l := range t.Losers {
			render.Printf(out, "  loses   %s, which wants %s\n", l.Instance, l.Wants)
		}
	}
	if len(settable) < len(all) {
		render.Println(out, "LEFT TO YOU")
	}
	for _, t := range all {
		if t.ByHand != "" {
			render.Printf(out, "%s  %s  %s\n", strings.ToUpper(t.Severity), t.Rule, t.Title)
			printOn(out, t.On)
			render.Printf(out, "  change  %s\n", t.ByHand)
		}
	}
	switch {
	case len(all) == 0:
		render.Println(out, "nothing to do: advise finds nothing")
	case len(settable) == 0:
		render.Println(out, "nothing that tune can set; `bulkhead advise` says more")
	default:
		render.Println(out, "`bulkhead tune apply RULE…` sets it, `bulkhead advise` says why")
	}
}

func tuneApplyCmd(s Session) *cobra.Command {
	var o options
	var b benchFlags
	c := &cobra.Command{
		Use:   "apply RULE… | apply --severity SEVERITY",
		Short: "set what these rules advise, now and at boot, as one change",
		Long: `apply sets what rules advise, as one change. With --bench it is measured first: a scenario of
"bench list" loads a throw-away database in rounds without and with the change, or --instance is measured
under its own load. Throughput and latency are held against how much two measurements without the change
differ (the A/A spread). What is worse beyond that is taken back, with exit code 1; all else is kept, and it
is said whether it is better. Between two measurements the change is undone; Ctrl-C undoes it, and after a
kill it undoes itself in a few minutes.`,
		Example: `  bulkhead tune apply MEM-01 MEM-12 --dry-run
  bulkhead tune apply IO-01 --bench                      on a MariaDB that commits (scenario commits)
  bulkhead tune apply IO-01 --bench commits-postgres --dir /data --rounds 9
  bulkhead tune apply MEM-12 --bench --instance mysql3306 \
    --dsn mysql3306=@/root/mysql.dsn --seconds 60        the instance itself, under its own load`,
		Args: cobra.ArbitraryArgs,

		ValidArgsFunction: completeRules(-1),
	}
	request := s.Flags(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		args, measured, err := s.measured(cmd, args, b, o.dsn)
		if err != nil {
			return err
		}
		if len(args) == 0 && o.severity == "" {
			return usage.Errorf(cmd, "say which advice to follow: tune apply RULE…, or --severity")
		}
		all, err := s.tunings(cmd, args, &o)
		if err != nil {
			return err
		}
		return s.follow(cmd, request("tune apply"), all, args, measured)
	}
	o.flags(c)
	b.add(c)
	return c
}

// follow sets what tunings say by change, all there are of some rules when rules are named.
func (s Session) follow(cmd *cobra.Command, q api.Request, all []tuning, names []string,
	change func(*cobra.Command, api.Request) error) error {
	for _, t := range all {
		if len(names) > 0 && t.ByHand != "" {
			return api.Errorf(api.CodeRefused, "`bulkhead advise show "+t.Rule+"` says why and what it costs",
				"%s is left to you: %s", t.Rule, t.ByHand)
		}
		q.Tune = append(q.Tune, t.Settings...)
	}
	var nothing []string
	for _, name := range names {
		if !slices.ContainsFunc(all, func(t tuning) bool { return strings.EqualFold(t.Rule, name) }) {
			nothing = append(nothing, name+": nothing to set, advise finds nothing by it")
		}
	}
	if len(q.Tune) > 0 {
		for _, line := range nothing {
			render.Printf(cmd.ErrOrStderr(), "%s\n", line)
		}
		return change(cmd, q)
	}
	if len(names) == 0 {
		nothing = []string{"nothing to do: tune can set nothing of what advise finds from this severity on; " +
			"`bulkhead tune plan` lists what is left to you"}
	}
	r := api.Reply{Text: strings.Join(nothing, "\n")}
	r.Plan.Steps = render.OrEmpty(r.Plan.Steps)
	return s.Print(r, func() { render.Println(s.Out, r.Text) })
}

func tuneRollbackCmd(s Session) *cobra.Command {
	c := &cobra.Command{
		Use:   "rollback [RULE…]",
		Short: "give settings the values that they had before; without a rule all of them",
		Args:  cobra.ArbitraryArgs,

		ValidArgsFunction: completeRules(-1),
	}
	request := s.Flags(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		q := request("tune rollback")
		q.Rules = args
		return s.Change(cmd, q)
	}
	return c
}
