package places_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/selinux/places"
)

// of gives the paths and ports of settings, in words.
func of(inst engine.Instance, settings map[string]string) (got []string) {
	paths, ports := places.Of(inst, func(name string) (string, string) {
		value, set := settings[name]
		if !set {
			return "", ""
		}
		return value, "f:1"
	})
	for _, p := range paths {
		got = append(got, fmt.Sprintf("%s %s %s", p.Setting, p.Kind, p.Path))
	}
	for _, p := range ports {
		got = append(got, strings.TrimSuffix(fmt.Sprintf("%s %s %d %v", p.Setting, p.Protocol, p.Number, p.Peers),
			" false"))
	}
	return got
}

// documented are the variables of https://www.percona.com/blog/enforcing-selinux-with-percona-xtradb-cluster/ and those
// of newer servers; slow_query_log there is a switch, and slow_query_log_file the path.
const documented = `datadir basedir character_sets_dir general_log_file init_file innodb_undo_directory innodb_tmpdir
innodb_temp_data_file_path innodb_parallel_doublewrite_path innodb_log_group_home_dir innodb_data_home_dir
innodb_data_file_path innodb_buffer_pool_filename lc_messages_dir log_bin_basename log_bin_index log_error pid_file
plugin_dir relay_log_basename relay_log_info_file slave_load_tmpdir slow_query_log_file socket ssl_ca ssl_capath
ssl_cert ssl_crl ssl_crlpath ssl_key tmpdir wsrep_data_home_dir wsrep_provider_options
innodb_doublewrite_dir innodb_directories innodb_temp_tablespaces_dir innodb_redo_log_archive_dirs replica_load_tmpdir
secure_file_priv audit_log_file keyring_file_data mysqlx_socket admin_ssl_cert mysqlx_ssl_key
port admin_port mysqlx_port wsrep_node_address wsrep_sst_receive_address group_replication_local_address`

func TestDocumentedSettings(t *testing.T) {
	asked := places.Settings(engine.MySQL)
	for name := range strings.FieldsSeq(documented) {
		if !slices.Contains(asked, name) {
			t.Errorf("%s is not asked for", name)
		}
	}
	for _, of := range []string{engine.MySQL, engine.PostgreSQL, engine.Redis} {
		for _, name := range places.Settings(of) {
			if strings.Contains(name, "password") || strings.Contains(name, "auth") || strings.ContainsAny(name,
				"'\" ") {
				t.Errorf("%s asks for %q", of, name)
			}
		}
	}
}

func TestOf(t *testing.T) {
	for name, c := range map[string]struct {
		inst     engine.Instance
		settings map[string]string
		want     string // lines
	}{
		"nothing set": {engine.Instance{Engine: engine.MySQL, DataDir: "/d", Socket: "/s", Ports: []int{3306},
			Config: "/c"},
			nil, "data directory data /d\nconfiguration file configuration /c\nsocket runtime /s\nlistening " +
				"socket tcp 3306"},
		"relative and lists": {engine.Instance{Engine: engine.MySQL, DataDir: "/d"}, map[string]string{
			"datadir": "/d/", "innodb_data_home_dir": "inno",
			"innodb_data_file_path":      "ibdata1:12M;/x/ib2:12M:autoextend",
			"innodb_temp_data_file_path": "../tmp/ibtmp1:12M", "log_bin": "binlog", "log_bin_basename": "/b/bin",
			"relay_log": "/r/relay", "innodb_directories": "/i1;/i2", "innodb_redo_log_archive_dirs": "a:/ra;b:/rb",
			"tmpdir": "/t1:/t2", "log_error": "./host", "slow_query_log_file": "slow.log", "secure_file_priv": "NULL",
			"basedir": "/usr", "lc_messages_dir": "share", "ssl_ca": "ca.pem", "general_log_file": "",
			"pid_file": "/p/m.pid", "port": "3307", "skip_networking": "OFF", "mysqlx_port": "33060",
			"admin_port":                      "33062",
			"group_replication_local_address": "node:33061", "innodb_buffer_pool_filename": "ib_pool"},
			`datadir data /d
innodb_data_home_dir data /d/inno
log_bin_basename data /b
relay_log data /r
innodb_data_file_path data /d/inno/ibdata1
innodb_data_file_path data /x/ib2
innodb_temp_data_file_path data /d/tmp/ibtmp1
innodb_buffer_pool_filename data /d/inno/ib_pool
innodb_directories data /i1
innodb_directories data /i2
innodb_redo_log_archive_dirs data /ra
innodb_redo_log_archive_dirs data /rb
log_error log /d/host.err
slow_query_log_file log /d/slow.log
pid_file runtime /p/m.pid
tmpdir temporary /t1
tmpdir temporary /t2
ssl_ca certificate /d/ca.pem
basedir share /usr
lc_messages_dir share /usr/share
port tcp 3307
mysqlx_port tcp 33060
group_replication_local_address tcp 33061 true`},
		"switches": {engine.Instance{Engine: engine.MySQL}, map[string]string{"log_bin": "ON", "log_error": "stderr",
			"skip_networking": "ON", "port": "3306", "extra_port": "0", "admin_address": "::1", "admin_port": "33062",
			"wsrep_provider": "none"}, "admin_port tcp 33062"},
		"Galera": {engine.Instance{Engine: engine.MySQL, DataDir: "/d"}, map[string]string{"wsrep_provider": "/l/g.so",
			"wsrep_provider_options": "base_dir = /g/; gcache.dir = /fast; gcache.name = c; socket.ssl_key = k.pem; " +
				"gmcast.listen_addr = tcp://0.0.0.0:4600; gmcast.mcast_addr = 239.1.1.1; ist.recv_addr=[::1]:4700; bad",
			"wsrep_sst_receive_address": "10.0.0.1:4444"},
			`wsrep_provider library /l/g.so
wsrep_provider_options: base_dir data /g
wsrep_provider_options: gcache.dir data /fast
wsrep_provider_options: gcache.name data /fast/c
wsrep_provider_options: socket.ssl_key certificate /d/k.pem
data directory data /d
wsrep_provider_options: gmcast.listen_addr tcp 4600 true
wsrep_provider_options: gmcast.mcast_addr udp 4600 true
wsrep_provider_options: ist.recv_addr tcp 4700 true
wsrep_sst_receive_address tcp 4444 true`},
		"Galera without a word": {engine.Instance{Engine: engine.MySQL}, map[string]string{"wsrep_provider": "/l/g.so",
			"wsrep_node_address": "AUTO"}, `wsrep_provider library /l/g.so
wsrep_provider_options: gmcast.listen_addr tcp 4567 true
wsrep_provider_options: ist.recv_addr tcp 4568 true
wsrep_sst_receive_address tcp 4444 true`},
		"PostgreSQL": {engine.Instance{Engine: engine.PostgreSQL, DataDir: "/d", Config: "/e/postgresql.conf",
			Port:  5433,
			Ports: []int{5433}}, map[string]string{"hba_file": "pg_hba.conf", "log_directory": "log", "port": "5433",
			"ssl_cert_file": "server.crt", "unix_socket_directories": "/run/pg, @abstract,/tmp"},
			`hba_file configuration /e/pg_hba.conf
log_directory log /d/log
ssl_cert_file certificate /d/server.crt
unix_socket_directories runtime /run/pg/.s.PGSQL.5433
unix_socket_directories runtime /tmp/.s.PGSQL.5433
data directory data /d
configuration file configuration /e/postgresql.conf
port tcp 5433`},
		"Redis": {engine.Instance{Engine: engine.Redis, DataDir: "/d", Port: 6379, Ports: []int{6379, 16379}},
			map[string]string{"dir": "/d", "logfile": "", "pidfile": "/p", "loadmodule": "/m.so a b", "port": "6379",
				"tls-port": "0", "cluster-enabled": "yes", "cluster-port": "0", "tls-key-file": "k"},
			`dir data /d
pidfile runtime /p
tls-key-file certificate /d/k
loadmodule library /m.so
port tcp 6379
cluster-port tcp 16379 true`},
		"another": {engine.Instance{Engine: engine.MongoDB, DataDir: "/m", Ports: []int{27017}}, nil,
			"data directory data /m\nlistening socket tcp 27017"},
	} {
		if got := strings.Join(of(c.inst, c.settings), "\n"); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

func TestCustomary(t *testing.T) {
	for _, of := range []string{engine.MySQL, engine.PostgreSQL, engine.Redis, engine.MongoDB} {
		for _, kind := range []places.Kind{places.Data, places.Log, places.Runtime, places.Config, places.Program,
			places.Certificate} {
			if len(places.Customary(of, kind)) == 0 {
				t.Errorf("%s has no %s", of, kind)
			}
		}
	}
}

// Whatever settings say, places are clean absolute paths, and ports are ports.
func FuzzOf(f *testing.F) {
	f.Add("tcp://0.0.0.0:4567", "base_dir = /a; gcache.dir=b;ist.recv_addr=[::1]:99999", "a:b;c")
	f.Add("/a:/b", ";;=;", "../../x")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		for n, engineName := range []string{engine.MySQL, engine.PostgreSQL, engine.Redis} {
			names := places.Settings(engineName)
			paths, ports := places.Of(engine.Instance{Engine: engineName, DataDir: "/d"}, func(name string) (string,
				string) {
				if name == "wsrep_provider_options" {
					return b, "f"
				}
				return []string{a, b, c}[(slices.Index(names, name)+n+len(a))%3], "f"
			})
			for _, p := range paths {
				if !strings.HasPrefix(p.Path, "/") || strings.Contains(p.Path, "/../") {
					t.Errorf("%+v", p)
				}
			}
			for _, p := range ports {
				if p.Number < 1 || p.Number > 65535 {
					t.Errorf("%+v", p)
				}
			}
		}
	})
}
