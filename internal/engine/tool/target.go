package tool

import (
	"cmp"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// Target is what a helper was told about the server it serves.
type Target struct {
	Points  []Point
	DataDir string
	Config  string
	SID     string
	// said are the words that told it, for people. A variable of the environment is only named: passwords are
	// given in it.
	SaidDir, SaidConfig, SaidSID string

	socketFirst bool // as of its dialect, unless it was told to use TCP
}

// Point is one address of a server.
type Point struct {
	Host   string
	Port   int
	Socket string
	Said   string
}

func (t *Target) add(p Point, said string) {
	if p.Host == "" && p.Port == 0 && p.Socket == "" || len(t.Points) >= 16 {
		return
	}
	if p.Said == "" {
		p.Said = said
	}
	t.Points = append(t.Points, p)
}

// Tells says whether an address tells one server of a host apart: by a socket, or by a port that counts.
func (t *Target) Tells(p Point) bool {
	return p.Socket != "" || p.Port != 0 && !(t.socketFirst && (p.Host == "" || p.Host == "localhost"))
}

// LocalHost says whether a host's name or address is this host by itself. Another name of it is not known to be.
func LocalHost(name string) bool {
	switch name = strings.ToLower(strings.Trim(name, "[]")); name {
	case "", ".", "localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "0.0.0.0", "::":
		return true
	}
	if ip := net.ParseIP(name); ip != nil {
		return ip.IsLoopback()
	}
	return path.IsAbs(name)
}

func (d *dialect) target(r options.Reader, p *procfs.Process, env func() map[string]string) Target {
	opts := options.LongOptions(p.Args, d.short)
	t := Target{socketFirst: d.socketFirst && !strings.EqualFold(opts["protocol"], "tcp")}
	first := func(names []string) (value, name string) {
		for _, name := range names {
			if v := opts[name]; v != "" {
				return v, name
			}
		}
		return "", ""
	}
	t.add(optionPoint(first, d), "")
	for _, name := range d.uri {
		if value := opts[name]; value != "" {
			for _, pt := range parsePoints(value) {
				t.add(pt, "--"+name)
			}
		}
	}
	if dir, name := first(d.dataDir); path.IsAbs(dir) {
		t.DataDir, t.SaidDir = path.Clean(dir), "--"+name+"="+dir
	}
	if file, name := first(d.config); path.IsAbs(file) {
		t.Config, t.SaidConfig = path.Clean(file), "--"+name+"="+file
	}
	if d.more != nil {
		d.more(r, p, &t)
	}
	if len(t.Points) == 0 && t.DataDir == "" && t.Config == "" {
		t.fromEnvironment(d.env, env())
	}
	return t
}

// optionPoint is the address in options of their own.
func optionPoint(first func([]string) (value, name string), d *dialect) Point {
	var pt Point
	var said []string
	var name string
	if pt.Host, name = first(d.host); name != "" {
		said = append(said, "--"+name+"="+pt.Host)
	}
	if text, name := first(d.port); name != "" {
		pt.Port = portNumber(text)
		said = append(said, "--"+name+"="+text)
	}
	if pt.Socket, name = first(d.socket); name != "" {
		said = append(said, "--"+name+"="+pt.Socket)
	}
	pt.Said = strings.Join(said, " ")
	return pt
}

func (t *Target) fromEnvironment(names envDialect, env map[string]string) {
	first := func(names []string) (value, name string) {
		for _, name := range names {
			if env[name] != "" {
				return env[name], name
			}
		}
		return "", ""
	}
	var pt Point
	var said []string
	for _, v := range []struct {
		names []string
		set   func(string)
	}{
		{names.host, func(v string) { pt.Host = v }},
		{names.port, func(v string) { pt.Port = portNumber(v) }},
		{names.socket, func(v string) { pt.Socket = v }},
	} {
		if value, name := first(v.names); name != "" {
			v.set(value)
			said = append(said, name)
		}
	}
	t.add(pt, strings.Join(said, " and ")+" of its environment")
	if value, name := first(names.uri); name != "" {
		for _, pt := range parsePoints(value) {
			t.add(pt, name+" of its environment")
		}
	}
	if dir, name := first(names.dataDir); path.IsAbs(dir) {
		t.DataDir, t.SaidDir = path.Clean(dir), name+" of its environment"
	}
	if sid, name := first(names.sid); name != "" {
		t.SID, t.SaidSID = sid, name+" of its environment"
	}
}

func portNumber(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 65535 {
		return 0
	}
	return n
}

// parsePoints reads the forms in which programs take an address: "host:3306", "redis://host:6379/0",
// "mongodb://a:27017,b:27017/db", "user:word@tcp(host:3306)/db", "user@unix(/run/m.sock)/",
// "postgresql://user:word@host:5433/db?host=/run", "host=localhost port=5433". What it does not know gives none.
func parsePoints(text string) []Point {
	var all []Point
	for part := range strings.SplitSeq(text, ",") {
		if pt, ok := parsePoint(part); ok && len(all) < 16 {
			all = append(all, pt)
		}
	}
	return all
}

func parsePoint(text string) (Point, bool) {
	text = strings.TrimSpace(text)
	if pt, ok := parsePairs(strings.Fields(text), "host", "port", ""); ok {
		return pt, true
	}
	if _, rest, ok := strings.Cut(text, "unix("); ok {
		socket, _, closed := strings.Cut(rest, ")")
		return Point{Socket: socket}, closed && path.IsAbs(socket)
	}
	if at := strings.LastIndex(text, "@"); at >= 0 && strings.Contains(text[at:], "(") {
		_, rest, _ := strings.Cut(text[at:], "(")
		text, _, _ = strings.Cut(rest, ")")
	}
	if strings.Contains(text, "://") {
		return parseURL(text)
	}
	if path.IsAbs(text) {
		return Point{Socket: text}, true
	}
	if at := strings.LastIndex(text, "@"); at >= 0 { // the rest of a list whose first part had the user
		text = text[at+1:]
	}
	text, _, _ = strings.Cut(text, "/")
	text, _, _ = strings.Cut(text, "?")
	name, port, err := net.SplitHostPort(text)
	if err != nil || portNumber(port) == 0 {
		return Point{}, false
	}
	return Point{Host: name, Port: portNumber(port)}, true
}

func parseURL(text string) (Point, bool) {
	u, err := url.Parse(text)
	if err != nil {
		return Point{}, false
	}
	pt := Point{Host: u.Hostname(), Port: portNumber(u.Port())}
	query := u.Query()
	if h := query.Get("host"); h != "" {
		pt.Host = h
	}
	if p := query.Get("port"); p != "" {
		pt.Port = portNumber(p)
	}
	if u.Scheme == "unix" || u.Host == "" && path.IsAbs(u.Path) && strings.HasSuffix(u.Path, ".sock") {
		pt = Point{Socket: u.Path}
	}
	return pt, pt.Host != "" || pt.Port != 0 || pt.Socket != ""
}

// parsePairs reads NAME=VALUE words; only if every word is one.
func parsePairs(words []string, hostName, portName, socketName string) (Point, bool) {
	var pt Point
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if !ok || strings.ContainsAny(name, "/:@") {
			return Point{}, false
		}
		switch name {
		case hostName:
			pt.Host = strings.Trim(value, "'")
		case portName:
			pt.Port = portNumber(strings.Trim(value, "'"))
		case socketName:
			pt.Socket = value
		}
	}
	return pt, pt.Host != "" || pt.Port != 0 || pt.Socket != ""
}

// mysqlClientSections are the sections of an option file in which a helper may find its server.
var mysqlClientSections = []string{"client", "mysqldump", "mariabackup", "xtrabackup", "mysqld", "mariadbd", "mariadb",
	"server"}

// FromOptionFile reads the address in a MySQL option file that a helper was given.
func (t *Target) FromOptionFile(text, said string) {
	config := options.ParseINI(text)
	var pt Point
	for _, section := range mysqlClientSections {
		pt.Host = cmp.Or(pt.Host, config[section+".host"])
		pt.Socket = cmp.Or(pt.Socket, config[section+".socket"])
		if pt.Port == 0 {
			pt.Port = portNumber(config[section+".port"])
		}
		t.socketFirst = t.socketFirst && !strings.EqualFold(config[section+".protocol"], "tcp")
	}
	t.add(pt, said)
}

// dialect is how a family of helpers is told which server to serve.
type dialect struct {
	short                               map[string]string // short options by their long names
	port, host, socket, dataDir, config []string          // long options
	uri                                 []string          // options with an address of one of many forms
	env                                 envDialect
	// socketFirst says that the client library ignores a port and takes the default Unix socket where no host is given
	// or "localhost". MariaDB's programs alone take TCP then, from 10.6.1 on, and only with the port on the command
	// line: which release a program is of cannot be seen.
	socketFirst bool
	// more finds what options and variables do not say; nil for nothing.
	more func(s options.Reader, p *procfs.Process, t *Target)
}

type envDialect struct{ port, host, socket, dataDir, sid, uri []string }

var (
	mysqlDialect = dialect{
		short: map[string]string{"-P": "port", "-h": "host", "-S": "socket"}, socketFirst: true,
		port: []string{"port"}, host: []string{"host"}, socket: []string{"socket"}, dataDir: []string{"datadir"},
		config: []string{"defaults-file", "defaults-extra-file"},
		env: envDialect{port: []string{"MYSQL_TCP_PORT"}, socket: []string{"MYSQL_UNIX_PORT"},
			host: []string{"MYSQL_HOST"}},
	}
	// goMySQLDialect is for programs that read options as Go's flag packages do.
	goMySQLDialect = dialect{
		port: []string{"port"}, host: []string{"host"}, socket: []string{"socket"},
		config: []string{"config.my-cnf", "conf"}, uri: []string{"mysqld.address"},
		env: envDialect{uri: []string{"DATA_SOURCE_NAME"}},
	}
	// toolkitDialect has the address in an operand too: "h=localhost,P=3307,D=shop,t=orders".
	toolkitDialect = dialect{
		short: map[string]string{"-P": "port", "-h": "host", "-S": "socket", "-F": "defaults-file"}, socketFirst: true,
		port: []string{"port"}, host: []string{"host"}, socket: []string{"socket"}, config: []string{"defaults-file"},
		more: func(_ options.Reader, p *procfs.Process, t *Target) {
			for _, arg := range options.Operands(p.Args) {
				if pt, ok := parsePairs(strings.Split(arg, ","), "h", "P", "S"); ok {
					t.add(pt, arg)
				}
			}
		},
	}
	pgDialect = dialect{
		short: map[string]string{"-p": "port", "-h": "host", "-d": "dbname"},
		port:  []string{"port"}, host: []string{"host"}, dataDir: []string{"pgdata"},
		uri: []string{"dbname", "connstr"},
		env: envDialect{port: []string{"PGPORT"}, host: []string{"PGHOST"},
			uri: []string{"DATA_SOURCE_NAME", "DATA_SOURCE_URI"}},
	}
	pgbackrestDialect = dialect{port: []string{"pg1-port"}, host: []string{"pg1-host"}, dataDir: []string{"pg1-path"},
		more: pgbackrestStanza}
	walgDialect = dialect{
		env: envDialect{port: []string{"PGPORT"}, host: []string{"PGHOST"}, dataDir: []string{"PGDATA"},
			uri: []string{"MONGODB_URI", "WALG_MYSQL_DATASOURCE_NAME"}},
		more: func(_ options.Reader, p *procfs.Process, t *Target) {
			for _, arg := range options.Operands(p.Args) {
				if path.IsAbs(arg) && slices.Contains(p.Args, "backup-push") {
					t.DataDir, t.SaidDir = path.Clean(arg), arg
				}
			}
		},
	}
	barmanDialect = dialect{more: barmanServer}
	oracleDialect = dialect{env: envDialect{sid: []string{"ORACLE_SID"}}}
	mongoDialect  = dialect{short: map[string]string{"-h": "host"}, port: []string{"port"},
		uri: []string{"uri", "mongodb.uri", "mongodb-uri", "host"},
		env: envDialect{uri: []string{"MONGODB_URI", "PBM_MONGODB_URI"}}}
	redisDialect = dialect{short: map[string]string{"-p": "port", "-h": "host", "-s": "socket", "-u": "uri"},
		port: []string{"port"}, host: []string{"host"}, socket: []string{"socket"}, uri: []string{"uri", "redis.addr"},
		env: envDialect{uri: []string{"REDIS_ADDR"}}}
	cqlDialect = dialect{short: map[string]string{"-p": "port", "-h": "host"}, port: []string{"port"},
		host: []string{"host"}}
	clickhouseDialect = dialect{env: envDialect{port: []string{"CLICKHOUSE_PORT"}, host: []string{"CLICKHOUSE_HOST"}}}
	etcdDialect       = dialect{uri: []string{"endpoints"}, env: envDialect{uri: []string{"ETCDCTL_ENDPOINTS"}}}
)

// pgbackrestConfigs are where pgBackRest looks without --config.
var pgbackrestConfigs = []string{"/etc/pgbackrest/pgbackrest.conf", "/etc/pgbackrest.conf"}

// pgbackrestStanza looks the data directory of a stanza up in the configuration.
func pgbackrestStanza(s options.Reader, p *procfs.Process, t *Target) {
	opts := options.LongOptions(p.Args, nil)
	stanza := opts["stanza"]
	if stanza == "" || t.DataDir != "" {
		return
	}
	files := pgbackrestConfigs
	if own := opts["config"]; path.IsAbs(own) {
		files = []string{own}
	}
	for _, name := range files {
		config := options.ParseINI(string(s.File(p.PID, name)))
		for _, key := range []string{"pg1-path", "db-path"} {
			if dir := config[stanza+"."+key]; path.IsAbs(dir) && config[stanza+".pg1-host"] == "" {
				t.DataDir, t.SaidDir = path.Clean(dir), "stanza "+stanza+" of "+name
				return
			}
		}
		if other := config[stanza+".pg1-host"]; other != "" {
			t.add(Point{Host: other}, "stanza "+stanza+" of "+name)
			return
		}
	}
}

// barmanServer looks the connection of a server up in Barman's configuration.
func barmanServer(s options.Reader, p *procfs.Process, t *Target) {
	for _, server := range options.Operands(p.Args) {
		if strings.ContainsAny(server, "/ ") {
			continue
		}
		for _, name := range []string{"/etc/barman.d/" + server + ".conf", "/etc/barman.conf"} {
			config := options.ParseINI(string(s.File(p.PID, name)))
			text := cmp.Or(config[server+".conninfo"], config[server+".streaming_conninfo"])
			if text == "" {
				continue
			}
			if pt, ok := parsePairs(strings.Fields(text), "host", "port", ""); ok {
				t.add(pt, "conninfo of "+server+" in "+name)
				return
			}
		}
	}
}
