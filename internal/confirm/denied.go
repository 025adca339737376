package confirm

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/linux/audit"
	"bulkhead/internal/selinux/auditlog"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// WatchDenials adds to what is watched after a change, nil for nothing so far, that SELinux denies some domains
// nothing, for a time from now on.
func WatchDenials(w *state.Watch, domains []string, within time.Duration, now time.Time) *state.Watch {
	if w == nil {
		w = &state.Watch{}
	}
	w.Domains, w.Since, w.For = domains, now, max(w.For, within)
	return w
}

// denials watches what SELinux denies, by the log of auditd. It is for one goroutine.
type denials struct {
	log *auditlog.Follower
	// found is what was denied: it is said again until the change is undone.
	found string
	// blind is since when nobody takes the records of audit, or their log cannot be read; zero is not.
	blind time.Time
	// status asks for the state of auditing; nil is the kernel's.
	status func() (audit.Status, error)
}

// blindFor is for how long nobody may take the records of audit, as when auditd is started anew, or their log may not
// be there: the kernel keeps them meanwhile.
const blindFor = 10 * time.Second

// look says what was denied a domain that is watched, or why that would not be seen; "" is neither.
func (d *denials) look(c *transaction.Controller, w *state.Watch) (string, error) {
	if d.found != "" || len(w.Domains) == 0 {
		return d.found, nil
	}
	if d.log == nil {
		d.log = &auditlog.Follower{Root: c.Host.Root, Since: w.Since}
	}
	now := c.Now()
	all, err := d.log.Next(now)
	for _, one := range all {
		if one.Permissive != avc.Yes && slices.Contains(w.Domains, one.Source.Type) {
			d.found = deniedText(one)
			return d.found, nil
		}
	}
	why := d.unseen(c, err)
	switch {
	case why == "":
		d.blind = time.Time{}
	case d.blind.IsZero():
		d.blind = now
	case now.Sub(d.blind) >= blindFor:
		return why + ", so that nobody would see a denial", nil
	}
	return "", err
}

// deniedText is a denial in a sentence.
func deniedText(d avc.Denial) string {
	what := ""
	switch {
	case d.Path != "":
		what = " on " + d.Path
	case d.Name != "":
		what = fmt.Sprintf(" on a file named %q", d.Name)
	case d.Port > 0:
		what = fmt.Sprintf(" on port %d", d.Port)
	}
	return fmt.Sprintf("SELinux denied %q (process %d) in %s: %s%s (%s)", d.Comm, d.PID, d.Source.Type,
		strings.Join(d.Permissions, " "), what, avc.Rule(d.Source.Type, d.Target.Type, d.Class, d.Permissions))
}

// unseen says why denials are not written down any more, or cannot be read; "" is that they are. What this process may
// not ask counts as well.
func (d *denials) unseen(c *transaction.Controller, err error) string {
	ask := d.status
	switch {
	case err != nil:
		return "the log of auditd cannot be read: " + err.Error()
	case ask == nil && !c.Host.Root.Live():
		return ""
	case ask == nil:
		ask = audit.Of
	}
	if s, err := ask(); err != nil || s.PID != 0 && s.Enabled != 0 {
		return ""
	}
	return "nobody takes the records of audit any more (auditd)"
}

// close ends the reading; what was denied is forgotten.
func (d *denials) close() {
	if d.log != nil {
		d.log.Close()
	}
}
