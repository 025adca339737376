package zfsclone

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
)

const errorLog = "error.log" // in Plan.Run

func initFile(p *Plan) string { return filepath.Join(p.Dir(), "init.sql") }

// since says whether the server's version is at least another.
func (p *Plan) since(version string) bool {
	return fact.Since(strings.TrimPrefix(p.Version, "5.5.5-"), version)
}

// option is a line of an option file.
type option struct{ name, value string }

// Settings of the origin that the copy is told as they are, and directories that it is told as they are in the copy.
var (
	unchanged = []string{"basedir", "plugin_dir", "innodb_data_file_path", "innodb_undo_tablespaces",
		"innodb_log_file_size", "innodb_log_files_in_group", "innodb_page_size", "innodb_checksum_algorithm",
		"lower_case_table_names", "character_set_server", "collation_server", "sql_mode", "gtid_mode",
		"enforce_gtid_consistency"}
	directories = []string{"innodb_data_home_dir", "innodb_undo_directory", "innodb_log_group_home_dir",
		"aria_log_dir_path"}
)

// prepareMySQL removes what makes a server the one that it is, and has the indexes of its logs name its own files: a
// server removes the logs that its index names.
func (p *Plan) prepareMySQL() error {
	root, rel, err := p.open(p.DataDir)
	if err != nil {
		return err
	}
	defer root.Close()
	data, err := root.OpenRoot(rel)
	if err != nil {
		return err
	}
	defer data.Close()
	if err := without(data, "auto.cnf", "*.pid", "master.info", "relay-log.info", "multi-master.info", "master-*.info",
		"relay-log-*.info", "grastate.dat", "gvwstate.dat"); err != nil {
		return err
	}
	for _, log := range []string{"log_bin", "relay_log"} {
		index, err := p.index(log)
		if err != nil || index == "" {
			if err != nil {
				return err
			}
			continue
		}
		if err := p.rewrite(index); err != nil {
			return err
		}
	}
	return nil
}

// index is the index of a log in the copy; "" where there is none.
func (p *Plan) index(log string) (string, error) {
	base := p.Settings[log+"_basename"]
	if base == "" {
		return "", nil
	}
	name := p.Settings[log+"_index"]
	if name == "" {
		name = base + ".index"
	}
	return p.held(log+"_index", name)
}

// held is a path of the server as it is in the copy.
func (p *Plan) held(setting, name string) (string, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(p.Settings["datadir"], name)
	}
	mapped, held := p.In(filepath.Clean(name))
	if !held {
		return "", refuse("have the server keep it on the data sets", "%s of %s is %s, which the snapshot does not "+
			"hold", setting, p.Instance, name)
	}
	return mapped, nil
}

// mysqlOptions are the lines of its option file. First is for the first start.
func (p *Plan) mysqlOptions(first bool) ([]option, error) {
	run := func(name string) string { return filepath.Join(p.Run(), name) }
	list := []option{{"datadir", p.DataDir}, {"port", strconv.Itoa(p.Port)}, {"bind_address", "127.0.0.1"},
		{"socket", p.Socket()}, {"pid_file", run("mysqld.pid")}, {"log_error", run(errorLog)},
		{"server_id", strconv.FormatUint(uint64(p.ServerID), 10)}, {"report_host", p.Name},
		{"innodb_buffer_pool_size", strconv.FormatInt(p.Memory, 10)}, {"innodb_buffer_pool_load_at_startup", "OFF"},
		{"event_scheduler", "OFF"}, {"skip_name_resolve", "ON"}, {"loose_mysqlx", "OFF"}, {"loose_wsrep_on", "OFF"},
		{"loose_performance_schema", "OFF"}}
	if !p.mariadb() && p.since("8.0.0") {
		list = append(list, option{"persisted_globals_load", "OFF"}) // mysqld-auto.cnf is the origin's
	}
	kept, err := p.keeps()
	if err != nil {
		return nil, err
	}
	list = append(list, kept...)
	logs, err := p.logs()
	if err != nil {
		return nil, err
	}
	list = append(list, logs...)
	switch {
	case p.Replica != nil:
		list = append(list, option{"read_only", "ON"})
	case !p.mariadb() && p.since("8.0.26"):
		list = append(list, option{"skip_replica_start", "ON"})
	default:
		list = append(list, option{"skip_slave_start", "ON"})
	}
	if first && len(p.statements()) > 0 {
		list = append(list, option{"init_file", initFile(p)})
	}
	return list, nil
}

// keeps are the options that the files depend on, as its origin has them, with the directories of the copy.
func (p *Plan) keeps() (list []option, err error) {
	mysql8 := !p.mariadb() && p.since("8.0.0")
	capacity := !p.mariadb() && p.since("8.0.30") // innodb_redo_log_capacity took the place of two
	for _, name := range unchanged {
		value := p.Settings[name]
		switch {
		case value == "" || mysql8 && name == "innodb_undo_tablespaces" ||
			capacity && strings.HasPrefix(name, "innodb_log_file"):
			continue
		case name == "innodb_data_file_path" && strings.Contains(value, "/"):
			return nil, refuse("", "innodb_data_file_path of %s names directories: %s", p.Instance, value)
		}
		list = append(list, option{name, value})
	}
	for _, name := range directories {
		value := p.Settings[name]
		if value == "" || filepath.Clean(value) == "." {
			continue
		}
		mapped, err := p.held(name, value)
		if err != nil {
			return nil, err
		}
		list = append(list, option{name, mapped})
	}
	return list, nil
}

// logs are the options of the binary log, which MySQL also counts its GTIDs by, and of the relay log.
func (p *Plan) logs() (list []option, err error) {
	on := strings.EqualFold(p.Settings["log_bin"], "ON") || p.Settings["log_bin"] == "1"
	for _, log := range []string{"log_bin", "relay_log"} {
		index, err := p.index(log)
		switch {
		case err != nil:
			return nil, err
		case log == "log_bin" && !on:
			if !p.mariadb() && p.since("8.0.0") {
				list = append(list, option{"skip_log_bin", "ON"})
			}
			continue
		case index == "":
			continue
		}
		base, err := p.held(log+"_basename", p.Settings[log+"_basename"])
		if err != nil {
			return nil, err
		}
		list = append(list, option{log, base}, option{log + "_index", index})
	}
	return list, nil
}

// statements are those that the server runs before anybody can log in, at its first start: replication as its tables
// have it would be the origin's.
func (p *Plan) statements() []string {
	r := p.Replica
	renamed := !p.mariadb() && p.since("8.0.23")
	list := []string{}
	switch {
	case p.mariadb():
	case renamed:
		list = append(list, "RESET REPLICA ALL")
	default:
		list = append(list, "RESET SLAVE ALL")
	}
	if r == nil {
		return list
	}
	to := []string{"MASTER_HOST=" + quoted(p, r.Host), "MASTER_PORT=" + strconv.Itoa(r.Port), "MASTER_USER=" +
		quoted(p, r.User), "MASTER_PASSWORD=" + quoted(p, r.Password)}
	file, offset, _ := strings.Cut(p.Binlog, ":")
	switch {
	case p.gtids():
		to = append(to, "MASTER_AUTO_POSITION=1")
	case p.mariadb() && p.GTID != "":
		list = append(list, "SET GLOBAL gtid_slave_pos="+quoted(p, p.GTID))
		to = append(to, "MASTER_USE_GTID=slave_pos")
	default:
		to = append(to, "MASTER_LOG_FILE="+quoted(p, file), "MASTER_LOG_POS="+digits.FindString(offset))
	}
	if !renamed {
		return append(list, "CHANGE MASTER TO "+strings.Join(to, ", "), "START SLAVE")
	}
	for i := range to {
		to[i] = "SOURCE_" + strings.TrimPrefix(to[i], "MASTER_")
	}
	to = append(to, "GET_SOURCE_PUBLIC_KEY=1") // of an account with caching_sha2_password, without TLS
	return append(list, "CHANGE REPLICATION SOURCE TO "+strings.Join(to, ", "), "START REPLICA")
}

var digits = regexp.MustCompile(`^[0-9]+`)

// quoted is a text in a statement.
func quoted(p *Plan, text string) string {
	if !strings.Contains(p.Settings["sql_mode"], "NO_BACKSLASH_ESCAPES") {
		text = strings.ReplaceAll(text, `\`, `\\`)
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}

// mysqlFiles are the option file and, for the first start, the statements.
func (p *Plan) mysqlFiles(first bool) ([]file, error) {
	options, err := p.mysqlOptions(first)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Of the copy %s, made by bulkhead zfs clone. zfs refresh writes it anew.\n[mysqld]\n", p.Name)
	for _, o := range options {
		fmt.Fprintf(&b, "%s = %s\n", o.name, optionValue(o.value))
	}
	files := []file{{p.OptionFile(), b.String(), 0o644}}
	if statements := p.statements(); first && len(statements) > 0 {
		files = slices.Insert(files, 0, file{initFile(p), strings.Join(statements, ";\n") + ";\n", 0o640})
	}
	return files, nil
}

var plainValue = regexp.MustCompile(`^[A-Za-z0-9_./:,+@-]*$`)

// optionValue is a value in an option file (MySQL's manual, "Using Option Files").
func optionValue(text string) string {
	if plainValue.MatchString(text) {
		return text
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
