//go:build root

package advice

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/advise"
	"bulkhead/internal/api"
)

// aboveInfo lists what of a report is above info, by rules.
func aboveInfo(rep *advise.Report) []advise.Finding {
	return slices.DeleteFunc(slices.Clone(rep.Findings), func(f advise.Finding) bool { return f.Severity == "info" })
}

// restarted starts the servers of the machine anew, and waits until bulkhead sees them.
func restarted(t *testing.T) {
	t.Helper()
	sh(t, `systemctl restart mariadb 'postgresql@*.service' clean-redis
		for try in $(seq 60); do
			! mariadb -e 'SELECT 1' >/dev/null 2>&1 || ! redis-cli ping >/dev/null 2>&1 ||
				! su postgres -c 'psql -c "SELECT 1"' >/dev/null 2>&1 || exit 0
			sleep 1
		done
		echo "a server does not come back"
		exit 1`)
}

// A host as Debian installs it, with a MariaDB, a PostgreSQL and a Redis: after `tune apply` of everything, and after
// the servers were started anew, nothing above info is found but what the table of docs/advise.md has for such a host.
// Applied once more it changes nothing, and `tune rollback` gives back all.
func TestTunedHost(t *testing.T) {
	inLab(t)
	stays := map[string]bool{}
	for _, row := range readStays(t) {
		stays[row.Rule] = row.Fresh
	}
	// An installer writes lines of fstab; the machine has mounted its disks by itself.
	sh(t, `printf 'LABEL=data /mnt/data ext4 defaults 0 2\n/dev/disk/by-uuid/%s / ext4 defaults 0 1\n' \
			"$(findmnt -no UUID /)" >>/etc/fstab
		mkdir -p /mnt/data/redis; : >/etc/resolv.conf
		systemctl stop tuned; rm -f /etc/tuned/active_profile
		systemd-run --quiet --unit=clean-redis -p Restart=no redis-server --dir /mnt/data/redis --appendonly yes`)
	t.Cleanup(func() {
		sh(t, "systemctl stop clean-redis; rm -r /mnt/data/redis; systemctl restart mariadb; "+
			"sed -i '/defaults 0 [12]$/d' /etc/fstab")
	})
	sh(t, "until redis-cli ping >/dev/null; do sleep 1; done")
	logins := []string{}
	for _, d := range dsn {
		logins = append(logins, "--dsn", d)
	}
	rep := advice(t, dsn...)
	for _, u := range rep.Undecided {
		t.Logf("not decided: %s %v: %+v", u.Rule, u.On, u.Missing)
	}
	for _, f := range aboveInfo(rep) {
		t.Logf("before: %s %s %v: %s", f.Severity, f.Rule, f.On, f.Title)
	}
	before := configuration(t)

	apply := slices.Concat([]string{"tune", "apply", "--severity", "info", slow}, logins)
	t.Logf("bulkhead %s\n%s", strings.Join(apply, " "), run(t, apply...))
	restarted(t)
	for _, f := range aboveInfo(advice(t, dsn...)) {
		if !stays[f.Rule] {
			t.Errorf("%s %s %v is found after all was set: %s; %s %+v", f.Severity, f.Rule, f.On, f.Title, f.Means,
				f.Change)
			continue
		}
		t.Logf("stays: %s %s %v: %s", f.Severity, f.Rule, f.On, f.Title)
	}
	var set []api.Tuning
	ask(t, &set, "tune", "status")
	tuned := configuration(t)
	t.Logf("bulkhead %s\n%s", strings.Join(apply, " "), run(t, apply...))
	same(t, "applied again", tuned, configuration(t))
	var again []api.Tuning
	ask(t, &again, "tune", "status")
	byName := func(a, b api.Tuning) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(set, byName)
	slices.SortFunc(again, byName)
	if !slices.Equal(set, again) {
		t.Errorf("applied again it is %+v, and was %+v", again, set)
	}
	t.Logf("%d settings are in force", len(set))

	sh(t, program+" tune rollback")
	same(t, "after rollback", before, configuration(t))
	for _, s := range set {
		if text, is := kernelHolds(t, s.Name); is && s.Before != "" && text != s.Before {
			t.Errorf("after rollback %s is %q and was %q", s.Name, text, s.Before)
		}
	}
}

// kernelHolds is what the kernel has as a sysctl, or as a file below /sys.
func kernelHolds(t *testing.T, name string) (text string, is bool) {
	t.Helper()
	switch {
	case strings.HasPrefix(name, "/sys/"):
	case strings.ContainsAny(name, "/: "):
		return "", false
	default:
		name = "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
	}
	text = readTrimmed(t, name)
	if _, chosen, is := strings.Cut(text, "["); is {
		text, _, _ = strings.Cut(chosen, "]")
	}
	return text, true
}
