// Package places says which paths and ports a database server uses by its settings, and what for: the data that it
// writes, logs, sockets, certificates that it reads and so on. It knows the names of settings and how each is written,
// and the paths that packages of an engine customarily have. It opens nothing: whoever calls it gives it the settings.
package places

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
)

// Of gives the paths and ports of an instance.
func Of(inst engine.Instance, get Lookup) ([]Place, []Port) {
	c := &collector{inst: inst, get: get, seen: map[string]bool{}}
	switch inst.Engine {
	case engine.MySQL:
		c.mysql()
	case engine.PostgreSQL:
		c.postgresql()
	case engine.Redis:
		c.redis()
	}
	c.add("data directory", "discovered", Data, inst.DataDir)
	c.add("configuration file", "discovered", Config, inst.Config)
	c.add("socket", "discovered", Runtime, inst.Socket)
	for _, n := range inst.Ports {
		c.listen("listening socket", "the kernel", "tcp", n, false)
	}
	return c.places, c.ports
}

// Settings are the names that Of may ask for.
func Settings(of string) (names []string) {
	Of(engine.Instance{Engine: of}, func(name string) (string, string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		return "some", "" // so that what depends on a setting is asked for, too
	})
	return names
}

func (c *collector) postgresql() {
	dir := c.inst.DataDir
	c.file(Data, dir, "data_directory")
	c.file(Config, path.Dir(c.inst.Config), "config_file", "hba_file", "ident_file")
	c.file(Runtime, dir, "external_pid_file")
	c.file(Log, dir, "log_directory")
	c.file(Temporary, dir, "stats_temp_directory")
	c.file(Certificate, dir, "ssl_ca_file", "ssl_cert_file", "ssl_crl_file", "ssl_crl_dir", "ssl_key_file",
		"ssl_dh_params_file", "krb_server_keyfile")
	c.port("port")
	port := c.inst.Port
	for _, p := range c.ports {
		port = p.Number
	}
	value, from := c.get("unix_socket_directories")
	for one := range strings.SplitSeq(value, ",") {
		if one = strings.Trim(strings.TrimSpace(one), `"'`); path.IsAbs(one) { // "@" begins one without a path
			c.add("unix_socket_directories", from, Runtime, path.Join(one, ".s.PGSQL."+strconv.Itoa(port)))
		}
	}
}

// redisBus is what the port of a cluster's nodes is above that of clients, where cluster-port is 0.
const redisBus = 10000

func (c *collector) redis() {
	dir := c.inst.DataDir
	c.file(Data, dir, "dir")
	c.file(Log, dir, "logfile")
	c.file(Runtime, dir, "pidfile", "unixsocket")
	c.file(Config, dir, "aclfile")
	c.file(Certificate, dir, "tls-cert-file", "tls-key-file", "tls-client-cert-file", "tls-client-key-file",
		"tls-ca-cert-file", "tls-ca-cert-dir", "tls-dh-params-file")
	if value, from := c.get("loadmodule"); from != "" {
		name, _, _ := strings.Cut(value, " ")
		c.add("loadmodule", from, Library, in(dir, name))
	}
	c.port("port")
	c.port("tls-port")
	bus, from := c.get("cluster-port")
	on, onFrom := c.get("cluster-enabled")
	number, _ := strconv.Atoi(bus)
	if on != "yes" {
		return
	}
	if number == 0 {
		from = onFrom
		if number = c.inst.Port; number > 0 {
			number += redisBus
		}
	}
	c.listen("cluster-port", from, "tcp", number, true)
}

// customary are the paths that packages of an engine have, of each kind the most usual first. They are only asked for:
// which type each has, the file contexts of the host say.
var customary = map[string]map[Kind][]string{
	engine.MySQL: {
		Data:      {"/var/lib/mysql", "/var/lib/mysql/ibdata1"},
		Log:       {"/var/log/mysqld.log", "/var/log/mysql/error.log", "/var/log/mariadb/mariadb.log"},
		Runtime:   {"/run/mysqld/mysqld.sock", "/run/mariadb/mariadb.pid", "/var/lib/mysql/mysql.sock"},
		Config:    {"/etc/my.cnf", "/etc/mysql/my.cnf"},
		Share:     {"/usr/share/mysql/english/errmsg.sys"},
		Library:   {"/usr/lib64/mysql/plugin/auth_socket.so", "/usr/lib/mysql/plugin/auth_socket.so"},
		Program:   {"/usr/sbin/mysqld", "/usr/libexec/mysqld", "/usr/sbin/mariadbd", "/usr/libexec/mariadbd"},
		Temporary: {"/tmp"},
	},
	engine.PostgreSQL: {
		Data:      {"/var/lib/pgsql/data", "/var/lib/postgresql/15/main", "/var/lib/postgresql"},
		Log:       {"/var/log/postgresql/postgresql.log", "/var/lib/pgsql/data/log"},
		Runtime:   {"/run/postgresql/.s.PGSQL.5432"},
		Config:    {"/var/lib/pgsql/data/postgresql.conf", "/etc/postgresql/15/main/postgresql.conf"},
		Program:   {"/usr/bin/postgres", "/usr/lib/postgresql/15/bin/postgres"},
		Temporary: {"/tmp"},
	},
	engine.Redis: {
		Data:    {"/var/lib/redis", "/var/lib/redis/dump.rdb"},
		Log:     {"/var/log/redis/redis.log", "/var/log/redis/redis-server.log"},
		Runtime: {"/run/redis/redis.sock", "/run/redis/redis-server.pid"},
		Config:  {"/etc/redis.conf", "/etc/redis/redis.conf"},
		Program: {"/usr/bin/redis-server", "/usr/sbin/redis-server"},
	},
	engine.MongoDB: {
		Data:    {"/var/lib/mongo", "/var/lib/mongodb"},
		Log:     {"/var/log/mongodb/mongod.log", "/var/log/mongo/mongod.log"},
		Runtime: {"/run/mongodb/mongod.pid"},
		Config:  {"/etc/mongod.conf"},
		Program: {"/usr/bin/mongod"},
	},
}

// Shared are the directories of customary paths that programs of all kinds share.
var Shared = []string{"/var/lib", "/var/log", "/run", "/etc"}

// certificates are where distributions keep them.
var certificates = []string{"/etc/pki/tls/certs/server.pem", "/etc/pki/tls/private/server.key",
	"/etc/ssl/certs/server.pem"}

// Customary are the paths that packages of an engine have of a kind, the most usual first.
func Customary(of string, kind Kind) []string {
	if kind == Certificate {
		return certificates
	}
	return customary[of][kind]
}
