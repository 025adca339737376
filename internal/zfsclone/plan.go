package zfsclone

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/policy"
)

// Source is the server that a copy replicates, and how the copy logs in there.
type Source struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	User     string `json:"user"`
	Password string `json:"password,omitempty"` //nolint:gosec // a record is for root alone
}

// Request is what a person asked for, and what was found for it.
type Request struct {
	Name     string // of the copy
	Base     string // the directory in which each copy has its own
	Group    string
	Class    string // that the group is made from; "" where it is there already
	Snapshot dbsnapshot.Set
	Origins  []zfs.Dataset // the data sets of the snapshot, with their properties
	Port     int
	ServerID uint32
	Memory   int64   // innodb_buffer_pool_size or shared_buffers, bytes
	Quota    string  // of all data sets of the copy; "" for none
	Replica  *Source // nil for a copy that replicates nothing
}

// Set is one data set of a copy.
type Set struct {
	Name   string `json:"name"`
	Origin string `json:"origin,omitempty"` // the snapshot; "" of the one above the others
	Was    string `json:"was,omitempty"`    // where the origin was mounted
	Point  string `json:"point,omitempty"`
	// Properties are set on the data set itself: a clone takes none that is set on its origin.
	Properties map[string]string `json:"properties"`
}

// Plan is a copy, and what its server is told.
type Plan struct {
	Name     string            `json:"name"`
	Instance string            `json:"instance"`
	Snapshot string            `json:"snapshot"`
	Engine   string            `json:"engine"`
	Flavor   string            `json:"flavor,omitempty"`
	Version  string            `json:"version"`
	Program  string            `json:"program"`
	User     string            `json:"user"`
	Group    string            `json:"group"`
	Class    string            `json:"class,omitempty"`
	Base     string            `json:"base"`
	DataDir  string            `json:"datadir"`
	Port     int               `json:"port"`
	ServerID uint32            `json:"server_id,omitempty"`
	Memory   int64             `json:"memory"`
	Quota    string            `json:"quota,omitempty"`
	Sets     []Set             `json:"datasets"`
	Settings map[string]string `json:"settings"` // of the server whose snapshot it is
	Replica  *Source           `json:"replica,omitempty"`
	// Binlog and GTID are where replication begins.
	Binlog string `json:"binlog,omitempty"`
	GTID   string `json:"gtid,omitempty"`
}

// Dir is the directory of the copy: only root changes it. Run is the one that its server writes its socket, PID and
// log to.
func (p *Plan) Dir() string { return filepath.Join(p.Base, p.Name) }

// Run is where the server writes what is no data.
func (p *Plan) Run() string { return filepath.Join(p.Dir(), "run") }

// Socket is where it listens: of PostgreSQL the directory.
func (p *Plan) Socket() string {
	if p.Engine == engine.PostgreSQL {
		return p.Run()
	}
	return filepath.Join(p.Run(), "mysqld.sock")
}

// OptionFile is the one that the server reads, and the only one.
func (p *Plan) OptionFile() string {
	if p.Engine == engine.PostgreSQL {
		return filepath.Join(p.Dir(), "postgresql.conf")
	}
	return filepath.Join(p.Dir(), "my.cnf")
}

// StartLog is what the server says before it has a log of its own.
func (p *Plan) StartLog() string { return filepath.Join(p.Dir(), "start.log") }

// Command is how the server is started, with its program.
func (p *Plan) Command() []string {
	if p.Engine == engine.PostgreSQL {
		return []string{p.Program, "-D", p.DataDir, "-c", "config_file=" + p.OptionFile()}
	}
	return []string{p.Program, "--defaults-file=" + p.OptionFile()}
}

// Points are the directories of its data sets.
func (p *Plan) Points() []string {
	var points []string
	for _, s := range p.Sets {
		if s.Point != "" {
			points = append(points, s.Point)
		}
	}
	return points
}

// Printable is a plan without the password of replication.
func (p *Plan) Printable() *Plan {
	shown := *p
	if p.Replica != nil {
		source := *p.Replica
		source.Password = ""
		shown.Replica = &source
	}
	return &shown
}

// In gives the path in the copy of one on the server, absolute; false where the snapshot does not hold it.
func (p *Plan) In(name string) (string, bool) {
	for _, s := range slices.Backward(p.Sets) { // the deepest come last
		if s.Was != "" && mountinfo.Within(name, s.Was) {
			return filepath.Join(s.Point, strings.TrimPrefix(name, s.Was)), true
		}
	}
	return "", false
}

// kept are the properties that a clone gets anew, with the values that hold for its origin.
var kept = []string{"recordsize", "compression", "checksum", "atime", "relatime", "xattr", "acltype", "primarycache",
	"secondarycache", "logbias", "sync", "snapdir", "dnodesize", "redundant_metadata"}

// Make makes the plan of a copy, or says why there is none.
func Make(r Request) (*Plan, error) {
	l, set := r.Snapshot.Layout, r.Snapshot
	p := &Plan{Name: r.Name, Instance: set.Instance, Snapshot: set.Name, Engine: l.Engine, Flavor: l.Flavor,
		Version: l.Version, Program: l.Program, User: l.User, Group: r.Group, Class: r.Class,
		Base: filepath.Clean(r.Base), Port: r.Port, ServerID: r.ServerID, Memory: r.Memory, Quota: r.Quota,
		Settings: l.Settings, Replica: r.Replica}
	if err := CheckName(r.Name); err != nil {
		return nil, err
	}
	if err := usable(set); err != nil {
		return nil, err
	}
	p.sets(r)
	var known bool
	if p.DataDir, known = p.In(l.DataDir); !known {
		return nil, refuse("`bulkhead zfs list` shows what it holds", "the snapshot %s does not hold the data "+
			"directory %s", set, l.DataDir)
	}
	if len(p.Socket()) > 80 { // sockaddr_un has 108 bytes, and PostgreSQL adds .s.PGSQL.PORT.lock
		return nil, refuse("take a shorter name, or --dir", "the socket %s would have too long a name", p.Socket())
	}
	for _, name := range l.Outside {
		if !p.told(name) {
			return nil, refuse("move it into the data directory", "%s has its file %s outside of the data directory "+
				"by its whole name: a copy would open that one, which is not its own", p.Instance, name)
		}
	}
	if r.Replica != nil {
		if err := p.replicates(set); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// CheckName says what is wrong with the name of a copy.
func CheckName(name string) error {
	if !policy.ValidName(name) || len(name) > 32 || policy.ReservedName(name) != "" {
		return api.Errorf(api.CodeUsage, "", "%q is no name for a copy: letters, digits and _.- after a letter or a "+
			"digit, 32 of them at most, and one that a group can have", name)
	}
	return nil
}

func refuse(hint, format string, args ...any) error {
	return api.Errorf(api.CodeRefused, hint, format, args...)
}

// usable says why no copy can be made of a snapshot.
func usable(s dbsnapshot.Set) error {
	l := s.Layout
	again := "take another one with `bulkhead zfs snapshot`"
	switch {
	case !s.Complete:
		return refuse(again, "the snapshot %s is not complete: %s", s, s.Trouble)
	case l.Engine != engine.MySQL && l.Engine != engine.PostgreSQL:
		return refuse("", "a copy of %s cannot be started: its engine is %s", s.Instance, l.Engine)
	case !filepath.IsAbs(l.Program) || strings.HasSuffix(l.Program, " (deleted)"):
		return refuse("restart the server, and "+again, "the program of %s was replaced while it ran: %q", s.Instance,
			l.Program)
	case l.User == "" || l.User == "root" || l.User == "0":
		return refuse("have the server run as a user of its own", "%s runs as %q", s.Instance, l.User)
	case l.Engine == engine.MySQL && l.Settings["datadir"] == "":
		return refuse(again+", without --crash-consistent", "the snapshot %s does not say what its server's files "+
			"depend on: nobody asked the server", s)
	}
	for _, d := range l.Datasets {
		if d.Point == "" {
			return refuse("mount it as a whole", "the server sees only a part of the data set %s", d.Name)
		}
	}
	for name, value := range l.Settings {
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return refuse("", "the setting %s of %s has control characters", name, s.Instance)
		}
	}
	return nil
}

// sets gives each data set of the snapshot its clone, those above others first.
func (p *Plan) sets(r Request) {
	l := r.Snapshot.Layout
	top := l.Pool() + "/" + p.Name
	above := map[string]string{"canmount": "off", "mountpoint": "none"}
	if p.Quota != "" {
		above["quota"] = p.Quota
	}
	p.Sets = []Set{{Name: top, Properties: above}}
	list := slices.Clone(l.Datasets)
	slices.SortFunc(list, func(a, b dbsnapshot.Dataset) int {
		return cmp.Or(cmp.Compare(len(a.Point), len(b.Point)), cmp.Compare(a.Name, b.Name))
	})
	taken := map[string]bool{"run": true, "my.cnf": true, "postgresql.conf": true}
	for _, d := range list {
		base := path.Base(d.Name)
		for n := 2; taken[base]; n++ {
			base = path.Base(d.Name) + "-" + strconv.Itoa(n)
		}
		taken[base] = true
		s := Set{Name: top + "/" + base, Origin: d.Name + "@" + r.Snapshot.Name, Was: d.Point,
			Point: filepath.Join(p.Dir(), base), Properties: map[string]string{}}
		if within, is := p.In(d.Point); is { // it is mounted in another one
			s.Point = within
		}
		for _, o := range r.Origins {
			for _, name := range kept {
				if v := o.Get(name); o.Name == d.Name && v != "" {
					s.Properties[name] = v
				}
			}
		}
		s.Properties["canmount"], s.Properties["mountpoint"] = "noauto", s.Point
		p.Sets = append(p.Sets, s)
	}
}

// told says whether a data file outside of the data directory is found by a setting, which the copy gets anew.
func (p *Plan) told(name string) bool {
	return slices.ContainsFunc([]string{"innodb_undo_directory", "innodb_data_home_dir"}, func(setting string) bool {
		dir := p.Settings[setting]
		_, held := p.In(name)
		return filepath.IsAbs(dir) && held && filepath.Dir(name) == filepath.Clean(dir)
	})
}

// replicates says why a copy cannot begin to replicate its origin where the snapshot was taken.
func (p *Plan) replicates(set dbsnapshot.Set) error {
	at, again := set.Position, "without --replica the copy is made all the same"
	s := p.Replica
	switch {
	case s.Host == "" || s.Port == 0 || s.User == "":
		return refuse("--source mysql://USER:PASSWORD@HOST:PORT/ or postgres://…", "replication needs a host, a port "+
			"and an account of the source: it goes over TCP")
	case strings.ContainsFunc(s.Host+s.User+s.Password, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return refuse("", "the account of the source has control characters")
	case p.Engine == engine.PostgreSQL:
		return nil
	case at.Binlog == "" && at.GTID == "":
		return refuse(again, "the snapshot %s has no position: its server has no binary log, or was not asked", set)
	case p.gtids():
		p.GTID = at.GTID
		return nil
	case at.AtLeast:
		return refuse(again, "the position of %s is not exact, as commits went on, and its server has no GTIDs", set)
	}
	p.Binlog, p.GTID = at.Binlog, ""
	if p.mariadb() {
		p.GTID = at.GTID
	}
	return nil
}

// gtids says whether MySQL itself knows by GTIDs which transactions a copy has.
func (p *Plan) gtids() bool { return !p.mariadb() && strings.EqualFold(p.Settings["gtid_mode"], "ON") }

func (p *Plan) mariadb() bool {
	return p.Flavor == engine.MariaDB || strings.Contains(p.Version, "MariaDB")
}

// Text is the plan for people.
func (p *Plan) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: a copy of %s@%s, in the group %s", p.Name, p.Instance, p.Snapshot, p.Group)
	if p.Class != "" {
		fmt.Fprintf(&b, ", made from the class %s", p.Class)
	}
	fmt.Fprintf(&b, "\nport %d, socket %s\n", p.Port, p.Socket())
	if p.Replica != nil {
		fmt.Fprintf(&b, "replicates %s:%d\n", p.Replica.Host, p.Replica.Port)
	}
	for _, s := range p.Sets {
		fmt.Fprintf(&b, "\n%s", s.Name)
		if s.Origin != "" {
			fmt.Fprintf(&b, ", of %s, mounted at %s", s.Origin, s.Point)
		}
		b.WriteString("\n ")
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			fmt.Fprintf(&b, " %s=%s", name, s.Properties[name])
		}
		b.WriteString("\n")
	}
	return b.String()
}
