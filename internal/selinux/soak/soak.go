// Package soak says what was denied in each case of use while domains of SELinux were permissive. It changes nothing
// and reads no file.
package soak

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/verdict"
	"bulkhead/internal/state"
)

// Case is a case of use in which a database may be denied what it needs at no other time.
type Case struct {
	Name string `json:"name"`
	// How is how to force it.
	How []string `json:"how"`
	// Galera says that only nodes of a cluster have it.
	Galera bool `json:"galera"`
}

// Cases are those to go through; other names may be given, too.
var Cases = []Case{
	{"stop-start", []string{"systemctl stop and start of the database's service, and one query"}, false},
	{"sst-donor", []string{
		"this node gives another one all its data. On the other node: stop it, remove grastate.dat from its data " +
			"directory, set wsrep_sst_donor to the wsrep_node_name of this one, and start it",
		"once for each wsrep_sst_method that is used (rsync, mariabackup, xtrabackup-v2, clone)"}, true},
	{"sst-joiner", []string{
		"this node gets all its data from another one. Here: stop it, remove grastate.dat from the data directory, " +
			"and start it"}, true},
	{"ist-donor", []string{
		"this node gives another one what it has missed. Stop the other node in order, write a few rows here, set " +
			"wsrep_sst_donor there to this node, and start it: its log says IST as long as the rows are in gcache"},
		true},
	{"ist-joiner", []string{
		"this node gets what it has missed. Stop it in order, write a few rows on another node, and start it"}, true},
	{"backup", []string{"the backup as it runs every night, by the same unit or cron job, with its upload"}, false},
	{"log-rotation", []string{"logrotate -f with the database's file in /etc/logrotate.d, or FLUSH LOGS"}, false},
	{"tls-reload", []string{"renew the certificate's files as usual, then FLUSH SSL (MariaDB), ALTER INSTANCE RELOAD " +
		"TLS (MySQL), or a reload (PostgreSQL)"}, false},
	{"load-data", []string{"LOAD DATA INFILE, and SELECT … INTO OUTFILE, or COPY: with a file where yours are"}, false},
}

// names of checkpoints.
var names = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,39}$`)

// Valid says whether a checkpoint may have this name.
func Valid(name string) bool { return names.MatchString(name) }

// Left are the cases that no checkpoint has begun.
func Left(s state.Soak) []Case {
	left := []Case{}
	for _, c := range Cases {
		if !slices.ContainsFunc(s.Checkpoints, func(p state.Checkpoint) bool { return p.Name == c.Name }) {
			left = append(left, c)
		}
	}
	return left
}

// Checkpoint is what was denied from where one begins to the next one.
type Checkpoint struct {
	Name  string    `json:"checkpoint"` // "" is from the begin to the first
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`
	// Denials are those of the domains that are looked at.
	Denials int `json:"denials"`
	// Groups are these denials, with what puts them right.
	Groups []verdict.Verdict `json:"groups"`
	// Lost is how many records of audit the kernel has lost in it, of any program; nil is not known. Where the host was
	// Rebooted in it, they are those since that boot; where the counter was set back (auditctl --reset-lost), since
	// then.
	Lost     *uint32 `json:"records_lost"`
	Rebooted bool    `json:"rebooted,omitempty"`
}

// losses says what was lost from one reading to a later one.
func (c *Checkpoint) losses(from, to state.Audited) {
	if from.Boot == "" || to.Boot == "" {
		return
	}
	lost := to.Lost
	if c.Rebooted = from.Boot != to.Boot; !c.Rebooted && lost >= from.Lost {
		lost -= from.Lost
	}
	c.Lost = &lost
}

// Of puts the denials of a soak's domains to its checkpoints. Others is how many denials of other domains there were
// in that time. The clock decides: one that was set meanwhile puts some to the wrong checkpoint. Lost is what the
// kernel says of records that it has lost, now.
func Of(log *avc.Log, s state.Soak, host verdict.Host, now time.Time, lost state.Audited) (all []Checkpoint,
	others int) {
	all, read := []Checkpoint{{At: s.At}}, []state.Audited{s.Audit}
	for _, p := range s.Checkpoints {
		all, read = append(all, Checkpoint{Name: p.Name, At: p.At}), append(read, p.Audit)
	}
	read = append(read, lost)
	for i := range all {
		c := &all[i]
		c.Until = now
		if i+1 < len(all) {
			c.Until = all[i+1].At
		}
		c.losses(read[i], read[i+1])
		part := *log
		part.Denials = nil
		for _, d := range log.Denials {
			switch {
			case d.When.Before(c.At.Truncate(time.Millisecond)) || !d.When.Before(c.Until.Truncate(time.Millisecond)):
			case slices.Contains(s.Domains, d.Source.Type):
				part.Denials = append(part.Denials, d)
			default:
				others++
			}
		}
		c.Denials, c.Groups = len(part.Denials), verdict.Judge(&part, host).Verdicts
		slices.SortStableFunc(c.Groups, func(a, b verdict.Verdict) int { return cmp.Compare(a.Source, b.Source) })
	}
	return all, others
}
