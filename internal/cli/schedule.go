package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/control"
	"bulkhead/internal/policy"
)

func (a *app) scheduleCmd() *cobra.Command {
	c := &cobra.Command{Use: "schedule", Short: "the windows of the policy: what is open, what comes next, what would switch"}
	c.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "each schedule, whether it is open, and when it switches next",
		RunE: func(*cobra.Command, []string) error {
			p, err := a.parsed()
			if err != nil {
				return err
			}
			return a.printSchedules(p, time.Now())
		},
	}, a.simulateCmd())
	return c
}

func (a *app) simulateCmd() *cobra.Command {
	var days int
	var from time.Time
	c := &cobra.Command{
		Use:   "simulate",
		Short: "every switch of the coming days, and what holds from then on",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if days < 1 || days > 3660 {
				return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("--days %d is not between 1 and 3660", days)}
			}
			p, err := a.parsed()
			if err != nil {
				return err
			}
			if from.IsZero() {
				from = time.Now()
			}
			return a.printSwitches(p, p.Switches(from, from.AddDate(0, 0, days)), days)
		},
	}
	c.Flags().IntVar(&days, "days", 30, "how many days")
	momentFlag(c, &from, "from", "from when on (default now)")
	return c
}

// parsed reads the policy file, without the host.
func (a *app) parsed() (*policy.Policy, error) {
	sources, err := policy.Read(a.policy)
	if err != nil {
		return nil, err
	}
	return policy.Parse(sources)
}

// scheduled is the JSON of a line of schedule list.
type scheduled struct {
	control.ScheduleStatus
	When   string   `json:"when"`
	Zone   string   `json:"zone,omitempty"`
	For    string   `json:"for"`
	Except []string `json:"except,omitempty"`
	Sets   []string `json:"sets"`
}

func (a *app) printSchedules(p *policy.Policy, now time.Time) error {
	statuses := control.ScheduleStatuses(p, nil, now)
	all := make([]scheduled, len(p.Schedules))
	for i, s := range p.Schedules {
		all[i] = scheduled{ScheduleStatus: statuses[i], When: s.Windows.When.String(), Zone: s.Zone, For: shortSpan(s.Windows.Length), Sets: sets(s)}
		for _, d := range s.Windows.Except {
			all[i].Except = append(all[i].Except, d.String())
		}
	}
	if a.json {
		return a.printJSON(all)
	}
	if len(all) == 0 {
		fmt.Fprintf(a.out, "%s has no schedules\n", a.policy)
		return nil
	}
	w := a.table("schedule", "when", "zone", "for", "except", "now", "next", "sets")
	for i, s := range all {
		state, next := "closed", "opens "
		if s.Open {
			state, next = "open", "closes "
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.When, dash(s.Zone), s.For, dash(strings.Join(s.Except, ", ")), state,
			next+moment(s.Next, p.Schedules[i].Windows.Zone), strings.Join(s.Sets, ", "))
	}
	flush(w)
	return nil
}

// sets is what a schedule asks, as `set` takes it.
func sets(s policy.Schedule) []string {
	all := []string{}
	for _, set := range s.Set {
		for _, one := range set.Settings {
			all = append(all, set.Group+":"+one.String())
		}
	}
	return all
}

// switched is the JSON of a line of schedule simulate.
type switched struct {
	At       time.Time `json:"at"`
	Schedule string    `json:"schedule"`
	Opens    bool      `json:"opens"`
	Holds    []string  `json:"holds"`
}

func (a *app) printSwitches(p *policy.Policy, all []policy.Switch, days int) error {
	lines := make([]switched, len(all))
	zones := make([]*time.Location, len(all))
	for i, sw := range all {
		lines[i] = switched{At: sw.At, Schedule: sw.Schedule, Opens: sw.Opens, Holds: []string{}}
		for _, s := range p.Schedules {
			if s.Name == sw.Schedule {
				zones[i], lines[i].Holds = s.Windows.Zone, holds(p, s, sw.At)
			}
		}
	}
	if a.json {
		return a.printJSON(lines)
	}
	if len(lines) == 0 {
		fmt.Fprintf(a.out, "nothing switches in %s\n", count(days, "day", "days"))
		return nil
	}
	w := a.table("at", "schedule", "what", "from then on")
	for i, l := range lines {
		what := "ends"
		if l.Opens {
			what = "begins"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", moment(l.At, zones[i]), l.Schedule, what, strings.Join(l.Holds, ", "))
	}
	flush(w)
	return nil
}

// holds is what the policy asks, at a time, of everything that a schedule is about.
func holds(p *policy.Policy, s policy.Schedule, at time.Time) []string {
	all, open := []string{}, p.Open(at)
	for _, set := range s.Set {
		for _, one := range set.Settings {
			text := set.Group + ":" + string(one.Key) + " as without it"
			if asked, ok := p.Asked(set.Group, one.Key, one.On, open); ok {
				text = set.Group + ":" + asked.String()
			}
			all = append(all, text)
		}
	}
	return all
}

// scheduleText says a schedule in one line of status.
func scheduleText(s control.ScheduleStatus) string {
	switch {
	case s.Skipped != "":
		return fmt.Sprintf("SKIPPED: schedule %s, open until %s: %s", s.Name, moment(s.Next, time.Local), s.Skipped)
	case s.Open:
		return fmt.Sprintf("in force over the policy: schedule %s since %s until %s", s.Name, moment(s.Since, time.Local), moment(s.Next, time.Local))
	case s.Next.IsZero():
		return fmt.Sprintf("schedule %s: no window within years", s.Name)
	}
	return fmt.Sprintf("next: schedule %s from %s", s.Name, moment(s.Next, time.Local))
}

// moment prints a time as the clock on the wall of a zone shows it.
func moment(t time.Time, zone *time.Location) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(zone).Format("2006-01-02 15:04 MST")
}

// shortSpan prints a length of whole minutes: 6h, 1h30m.
func shortSpan(d time.Duration) string {
	text := strings.TrimSuffix(d.String(), "0s")
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// momentFlag adds a flag for a point in time.
func momentFlag(c *cobra.Command, p *time.Time, name, usage string) {
	c.Flags().Var((*momentValue)(p), name, usage)
}

// momentValue is a point in time on the command line.
type momentValue time.Time

// moments are the forms that a point in time may have; without a zone it is the host's.
var moments = []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04", time.DateOnly}

func (m *momentValue) String() string {
	if time.Time(*m).IsZero() {
		return ""
	}
	return time.Time(*m).Format(time.RFC3339)
}

func (*momentValue) Type() string { return "time" }

func (m *momentValue) Set(text string) error {
	for _, form := range moments {
		if t, err := time.ParseInLocation(form, text, time.Local); err == nil {
			*m = momentValue(t)
			return nil
		}
	}
	return errors.New("not a time")
}
