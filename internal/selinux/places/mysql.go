package places

import (
	"cmp"
	"net"
	"path"
	"strconv"
	"strings"
)

// mysql: "Server System Variables" and "InnoDB Startup Options" of the MySQL 8.4 and MariaDB 11 manuals, and "Galera
// Parameters" of Galera's. Relative names are relative to the data directory, but for those of InnoDB's system
// tablespace.
func (c *collector) mysql() {
	dir := c.inst.DataDir
	c.file(Data, dir, "datadir", "innodb_undo_directory", "innodb_parallel_doublewrite_path",
		"innodb_log_group_home_dir",
		"innodb_data_home_dir", "innodb_doublewrite_dir", "innodb_temp_tablespaces_dir", "log_bin_index",
		"relay_log_index", "relay_log_info_file", "master_info_file", "wsrep_data_home_dir", "keyring_file_data",
		"secure_file_priv", "aria_log_dir_path", "rocksdb_datadir", "rocksdb_wal_dir")
	for _, files := range []struct{ told, option string }{{"log_bin_basename", "log_bin"},
		{"relay_log_basename", "relay_log"}} {
		c.basename(files.told)
		c.basename(files.option)
	}
	home, _ := c.get("innodb_data_home_dir")
	home = in(dir, cmp.Or(home, dir))
	c.dataFiles("innodb_data_file_path", home)
	c.dataFiles("innodb_temp_data_file_path", home)
	c.file(Data, home, "innodb_buffer_pool_filename")
	c.list(Data, dir, ";", "innodb_directories")
	c.archives("innodb_redo_log_archive_dirs")

	c.logs()
	c.file(Runtime, dir, "pid_file", "socket", "mysqlx_socket")
	c.list(Temporary, dir, ":", "tmpdir")
	c.file(Temporary, dir, "innodb_tmpdir", "slave_load_tmpdir", "replica_load_tmpdir")
	c.file(Config, dir, "init_file")
	for _, prefix := range []string{"", "admin_", "mysqlx_"} {
		for _, name := range []string{"ssl_ca", "ssl_capath", "ssl_cert", "ssl_crl", "ssl_crlpath", "ssl_key"} {
			c.file(Certificate, dir, prefix+name)
		}
	}
	c.file(Certificate, dir, "file_key_management_filename", "file_key_management_filekey")
	base, from := c.get("basedir")
	c.add("basedir", from, Share, base)
	c.file(Share, base, "character_sets_dir", "lc_messages_dir")
	c.file(Library, base, "plugin_dir")
	c.mysqlPorts()
	c.galera()
}

// logs are those for people. stderr is no file, and a name without a dot gets one from the server.
func (c *collector) logs() {
	for _, name := range []string{"log_error", "general_log_file", "slow_query_log_file", "audit_log_file",
		"server_audit_file_path", "log_slow_query_file"} {
		value, from := c.get(name)
		if from == "" || value == "stderr" {
			continue
		}
		if name == "log_error" && value != "" && path.Ext(value) == "" {
			value += ".err"
		}
		c.add(name, from, Log, in(c.inst.DataDir, value))
	}
}

// basename adds the directory of files that have a name in common.
func (c *collector) basename(name string) {
	value, from := c.get(name)
	switch strings.ToLower(value) {
	case "", "0", "1", "on", "off":
		return // log_bin is a name in files, and a switch as the server tells it
	}
	c.add(name, from, Data, path.Dir(in(c.inst.DataDir, value)))
}

// dataFiles adds those of "ibdata1:12M;/more/ibdata2:12M:autoextend".
func (c *collector) dataFiles(name, home string) {
	value, from := c.get(name)
	for one := range strings.SplitSeq(value, ";") {
		if file, _, found := strings.Cut(one, ":"); found {
			c.add(name, from, Data, in(home, file))
		}
	}
}

// archives adds the directories of "label:directory;label:directory".
func (c *collector) archives(name string) {
	value, from := c.get(name)
	for one := range strings.SplitSeq(value, ";") {
		if _, dir, found := strings.Cut(one, ":"); found {
			c.add(name, from, Data, dir)
		}
	}
}

func (c *collector) mysqlPorts() {
	if offline, from := c.get("skip_networking"); from == "" || offline == "0" || strings.EqualFold(offline, "off") {
		c.port("port")
	}
	c.port("extra_port") // of MariaDB and Percona
	if address, _ := c.get("admin_address"); address != "" {
		c.port("admin_port")
	}
	c.port("mysqlx_port")
	if value, from := c.get("group_replication_local_address"); from != "" {
		c.listen("group_replication_local_address", from, "tcp", portOf(value), true)
	}
}

// The ports of Galera where nothing else is said.
const galeraPort, stateTransferPort = 4567, 4444

// galera adds what the write set replication uses, where a provider is loaded.
func (c *collector) galera() {
	provider, from := c.get("wsrep_provider")
	if provider == "" || strings.EqualFold(provider, "none") {
		return
	}
	c.add("wsrep_provider", from, Library, provider)
	text, from := c.get("wsrep_provider_options")
	from = cmp.Or(from, "default of the engine")
	o := ProviderOptions(text)
	const setting = "wsrep_provider_options: "
	base := in(c.inst.DataDir, cmp.Or(o["base_dir"], c.inst.DataDir))
	c.add(setting+"base_dir", from, Data, base)
	cache := in(base, cmp.Or(o["gcache.dir"], base))
	c.add(setting+"gcache.dir", from, Data, cache)
	c.add(setting+"gcache.name", from, Data, in(cache, cmp.Or(o["gcache.name"], "galera.cache")))
	for _, name := range []string{"socket.ssl_ca", "socket.ssl_cert", "socket.ssl_key", "socket.ssl_password_file"} {
		c.add(setting+name, from, Certificate, in(c.inst.DataDir, o[name]))
	}

	node, _ := c.get("wsrep_node_address")
	first := cmp.Or(portOf(o["gmcast.listen_addr"]), portOf(node), number(o["base_port"]), galeraPort)
	c.listen(setting+"gmcast.listen_addr", from, "tcp", first, true)
	if o["gmcast.mcast_addr"] != "" {
		c.listen(setting+"gmcast.mcast_addr", from, "udp", first, true)
	}
	c.listen(setting+"ist.recv_addr", from, "tcp", cmp.Or(portOf(o["ist.recv_addr"]), first+1), true)
	receive, receiveFrom := c.get("wsrep_sst_receive_address")
	c.listen("wsrep_sst_receive_address", cmp.Or(receiveFrom, "default of the engine"), "tcp",
		cmp.Or(portOf(receive), stateTransferPort), true)
}

// ProviderOptions reads "base_dir = /var/lib/mysql/; gcache.dir = /fast; …" of wsrep_provider_options. The last one
// of a name wins.
func ProviderOptions(text string) map[string]string {
	all := map[string]string{}
	for one := range strings.SplitSeq(text, ";") {
		if name, value, found := strings.Cut(one, "="); found {
			all[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return all
}

// portOf is the port of "tcp://0.0.0.0:4567", "node1:33061", "[::1]:4444"; 0 is none.
func portOf(address string) int {
	if at := strings.Index(address, "://"); at >= 0 {
		address = address[at+3:]
	}
	address, _, _ = strings.Cut(address, "?")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	return number(port)
}

// number is 0 for what is no port.
func number(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}
