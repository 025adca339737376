package zfslayout

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/policy"
)

// base are the properties of the data set above the others, which those inherit. Each is set, whatever the pool has.
// The rules ZFS-03 to ZFS-08 of advise have the reasons.
var base = []Property{
	{Name: "recordsize", Value: "128K", Why: "logs are written from their beginning to their end"},
	{Name: "compression", Value: "lz4"},
	{Name: "atime", Value: "off"},
	{Name: "xattr", Value: "sa"},
	{Name: "acltype", Value: "posixacl", Why: "so that ACLs are copied"},
	{Name: "primarycache", Value: "all"},
	{Name: "logbias", Value: "latency"},
	{Name: "sync", Value: "standard", Why: "what is synced is on the disk"},
	{Name: "snapdir", Value: "hidden", Why: "a server takes no .zfs for a database"},
	{Name: "canmount", Value: "off"},
	{Name: "mountpoint", Value: "none"},
}

// properties are those of one data set: what it has of its own, and what it inherits.
func (p *Plan) properties(f Facts, s *Set) {
	if s.Kind == "" {
		s.Properties = slices.Clone(base)
		return
	}
	own := map[string]Property{"mountpoint": {Value: s.Point}, "canmount": {Value: "on"}}
	size, why := pages(f)
	switch datafiles.Kind(s.Kind) {
	case datafiles.Data, datafiles.Undo:
		own["recordsize"] = Property{Value: size, Why: why}
		if cache, why := cached(f); cache != "all" {
			own["primarycache"] = Property{Value: cache, Why: why}
		}
	case datafiles.Temp:
		own["sync"] = Property{Value: "disabled", Why: "no recovery reads temporary files"}
	}
	for _, b := range base {
		if set, has := own[b.Name]; has {
			set.Name = b.Name
			s.Properties = append(s.Properties, set)
			continue
		}
		b.From, b.Why = f.Pool+"/"+f.Instance, ""
		s.Properties = append(s.Properties, b)
	}
}

// pages gives the size of records for the pages of an engine.
func pages(f Facts) (size, why string) {
	if f.Found.Engine == engine.PostgreSQL {
		return "32K", "pages of 8 KiB; OpenZFS advises records of 32 to 128 KiB with compression"
	}
	n := bytesOf(cmp.Or(f.Options.Value("innodb_page_size"), "16K"))
	if n < 4<<10 || n > 64<<10 {
		n = 16 << 10
	}
	size = strconv.FormatInt(n>>10, 10) + "K"
	if from := f.Options.From("innodb_page_size"); from != "" {
		return size, "innodb_page_size, set in " + from
	}
	return size, "innodb_page_size is not set: pages of 16 KiB"
}

// cached says what ZFS is to keep in memory, as the rules ZFS-04 and ZFS-21 have it.
func cached(f Facts) (value, why string) {
	if f.Found.Engine == engine.PostgreSQL {
		return "all", ""
	}
	buffer := bytesOf(cmp.Or(f.Options.Value("innodb_buffer_pool_size"), "128M"))
	if f.Memory > 0 && buffer*2 >= f.Memory {
		return "metadata", "the buffer pool is half of the memory or more: what it has need not be kept twice"
	}
	return "all", ""
}

// bytesOf reads a number with K, M or G behind it, as option files have it; 0 for anything else.
func bytesOf(text string) int64 {
	text = strings.ToUpper(strings.TrimSpace(text))
	shift := 0
	if i := strings.IndexAny(text, "KMGT"); i > 0 && i == len(text)-1 {
		shift = 10 * (1 + strings.IndexByte("KMGT", text[i]))
		text = text[:i]
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<62>>shift {
		return 0
	}
	return n << shift
}

// spare is what stays free beside what is copied, in per cent: ZFS-26 has the reason.
const spare = 20

// pool finds the pool, or says how it is to be made, and whether it has room.
func (p *Plan) pool(f Facts) {
	p.Pool.Name = f.Pool
	for _, s := range p.Sets {
		p.Pool.Need += s.Bytes
	}
	at := slices.IndexFunc(f.Pools, func(have zfs.Pool) bool { return have.Name == f.Pool })
	if at >= 0 {
		p.existing(f, f.Pools[at])
	} else {
		p.newPool(f)
	}
	if need := p.Pool.Need + p.Pool.Need/10; len(p.Refused) == 0 && p.Pool.Free < need {
		p.refuse("add disks to the pool, or take another one", "%s has %s free, and %s are to be copied", f.Pool,
			policy.Bytes(p.Pool.Free).Human(),
			policy.Bytes(p.Pool.Need).Human())
	} else if at >= 0 {
		if left := f.Pools[at].Free - p.Pool.Need; left < f.Pools[at].Size*spare/100 {
			p.note("less than %d %% of %s would be free afterwards (ZFS-26)", spare, f.Pool)
		}
	}
	for _, d := range f.Datasets {
		for _, s := range p.Sets {
			if d.Name == s.Name {
				p.refuse("no data set that is there is used or changed: rename it, or take it away",
					"the data set %s is "+
						"there already", d.Name)
			}
		}
	}
}

// existing judges a pool that is there.
func (p *Plan) existing(f Facts, pool zfs.Pool) {
	p.Pool.Free = pool.Free
	for _, d := range f.Datasets {
		if n := d.Number("available"); d.Name == pool.Name && n >= 0 {
			p.Pool.Free = n
		}
	}
	if len(f.Request.Devices) > 0 {
		p.refuse("leave --device out", "the pool %s is there: nothing is made or added", pool.Name)
	}
	if pool.State != "ONLINE" {
		p.refuse("`zpool status "+pool.Name+"` says why", "the pool %s is %s", pool.Name, pool.State)
	}
	made := []string{}
	for _, v := range pool.Vdevs {
		switch v.Role {
		case zfs.RoleData:
			made = append(made, v.Name)
			if !v.Redundant() {
				p.single(f, v.Name)
			}
			p.file(f, v.Files())
		case zfs.RoleLog:
			p.file(f, v.Files())
		}
	}
	p.Pool.Made = strings.Join(made, ", ")
}

func (p *Plan) single(f Facts, name string) {
	if !f.Single {
		p.refuse("give two disks, or --single-disk where something below keeps a second copy",
			"nothing mirrors %s: the pool %s is lost with it", name, f.Pool)
	}
}

func (p *Plan) file(f Facts, files []string) {
	if len(files) > 0 && !f.Request.Files {
		p.refuse("give disks, or --file-vdev for a trial", "the pool %s lies in files (%s), which zpool(8) has for "+
			"tests alone", f.Pool, strings.Join(files, ", "))
	}
}

// newPool plans one that is to be made, of one vdev.
func (p *Plan) newPool(f Facts) {
	if len(f.Devices) == 0 {
		p.refuse("--device names the disks to make it of; `zpool import` shows pools that are not imported",
			"there is no pool %s", f.Pool)
		return
	}
	if why := badName(f.Pool); why != "" {
		p.refuse("zpoolconcepts(7) has the rules", "%q is no name for a pool: %s", f.Pool, why)
	}
	p.Pool.Create = []string{"-o", "ashift=12", "-O", "compression=lz4", "-O", "atime=off", "-O", "xattr=sa", "-O",
		"acltype=posixacl", "-O", "canmount=off", "-O", "mountpoint=none", f.Pool}
	smallest, names := int64(0), []string{}
	for i, d := range f.Devices {
		if d.Trouble != "" {
			p.refuse("`lsblk` shows disks", "%s: %s", d.Path, d.Trouble)
		}
		if d.File {
			p.file(f, []string{d.Path})
		}
		if slices.Contains(names, d.Path) {
			p.refuse("name each once", "%s is named twice", d.Path)
		}
		names = append(names, d.Path)
		if i == 0 || d.Bytes < smallest {
			smallest = d.Bytes
		}
	}
	p.Pool.Free = smallest - smallest/16 // what ZFS keeps for itself: slop space of 1/32, labels and metadata
	switch {
	case len(names) == 1:
		p.single(f, names[0])
		p.Pool.Made = names[0]
	case len(names) > 3:
		p.refuse("make the pool with zpool(8), and give its name alone", "%d devices can be joined in many ways",
			len(names))
	default:
		p.Pool.Made = "mirror of " + strings.Join(names, ", ")
		p.Pool.Create = append(p.Pool.Create, "mirror")
	}
	p.Pool.Create = append(p.Pool.Create, names...)
}

// badName says why a text is no name of a pool (zpoolconcepts(7)); "" if it is one.
func badName(name string) string {
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.:", r)
	}
	switch {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return !ok(r) }):
		return "letters, digits and _ - . : are allowed"
	case name[0] >= '0' && name[0] <= '9' || strings.ContainsRune("_-.:", rune(name[0])):
		return "it begins with no letter"
	}
	for _, taken := range []string{"mirror", "raidz", "draid", "spare", "log", "c0"} {
		if strings.HasPrefix(name, taken) {
			return taken + " is zpool's own word"
		}
	}
	return ""
}

// steps are what apply does, in its order.
func (p *Plan) steps() {
	add := func(writes, format string, args ...any) {
		p.Steps = append(p.Steps, Step{fmt.Sprintf(format, args...), writes})
	}
	if len(p.Pool.Create) > 0 {
		add("zpool create "+strings.Join(p.Pool.Create, " "), "make the pool %s", p.Pool.Name)
	}
	for _, s := range p.Sets {
		if s.Kind == "" {
			add("zfs create "+s.Name, "make %s, which the others inherit from", s.Name)
		} else {
			add("zfs create "+s.Name, "make %s, mounted elsewhere for now", s.Name)
		}
	}
	how := "SIGTERM to its main process"
	if p.Engine == engine.PostgreSQL {
		how = "SIGINT to its main process: a fast shutdown"
	}
	if p.Start.Unit != "" {
		how = "stop " + p.Start.Unit
	}
	add(how, "stop %s and wait until no process has a file of it open", p.Instance)
	for _, s := range p.Sets {
		if s.Kind != "" {
			add(s.Name, "copy %s%s, with owners, modes, attributes, links and hidden files, and compare each byte",
				s.From,
				only(s))
		}
		if s.Link != "" {
			add(p.Sets[1].Name, "link %s to %s", path.Join(p.DataDir, s.Link), path.Join(s.Point, s.Link))
		}
	}
	for _, s := range p.Sets {
		if s.Aside != "" {
			add("rename "+s.Point+" "+s.Aside, "keep %s; an empty directory that takes no file (chattr +i) is in its "+
				"place", s.Point)
		}
	}
	for _, e := range p.Edits {
		what := "add behind line %d of %s: %s"
		if e.Old != "" {
			what = "write line %d of %s anew: %s"
		}
		add(e.File+"; what it was stays as "+e.File+Suffix, what, e.Line, e.File, e.New)
	}
	for _, s := range slices.Backward(p.Sets) { // the data comes last: before that no server can start
		if s.Kind != "" && s.Kind != string(datafiles.Data) {
			add("zfs set mountpoint="+s.Point+" "+s.Name, "mount %s", s.Name)
		}
	}
	add("zfs set mountpoint="+p.DataDir+" "+p.Sets[1].Name, "mount %s: from here on it may hold new data",
		p.Sets[1].Name)
	how = "its own command, as it runs now"
	if p.Start.Unit != "" {
		how = "start " + p.Start.Unit
	}
	add(how, "start %s and wait until it answers", p.Instance)
}

// only says which files of a directory go into a data set.
func only(s Set) string {
	switch {
	case len(s.Only) > 0:
		return "/" + strings.Join(s.Only, ", ")
	case len(s.Except) > 0:
		return " without " + strings.Join(s.Except, ", ")
	}
	return ""
}
