// Package optionfile has the actuator of settings of database servers in option files of bulkhead's own: one that MySQL
// and MariaDB read by !includedir (FILE.cnf), and one that PostgreSQL reads by include_dir (FILE.conf). Its name is the
// last of its directory. No server is logged in to: PostgreSQL is told to read its files again (SIGHUP), and the others
// read them when they start.
//
// A setting is set to the one value with which nothing is lost. Where a server keeps such a file, and what it reads
// after it, package settings of advise finds.
package optionfile

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/change"
)

// Kind is a setting in an option file. Its address is the file with the setting,
// "/etc/mysql/conf.d/zz-bulkhead.cnf/sync_binlog"; "" is no line.
const Kind change.Kind = "engine setting"

// KindReread stands for PostgreSQL's reading of its files, which Reread asks for; its address is the directory of the
// file, and it has no value.
const KindReread change.Kind = "engine files"

// Prefix begins the name of a setting.
const Prefix = "option "

// The files, by the engines that read them.
const (
	MySQLFile      = "zz-bulkhead.cnf"
	PostgreSQLFile = "zz-bulkhead.conf"
)

// setting is one that can be set, and the value that it can be given.
type setting struct {
	file, name, value string
	running           bool // SET GLOBAL gives it to a server that runs
}

var settings = []setting{
	{MySQLFile, "innodb_flush_log_at_trx_commit", "1", true},
	{MySQLFile, "sync_binlog", "1", true},
	{MySQLFile, "innodb_doublewrite", "ON", false},
	{MySQLFile, "innodb_use_native_aio", "OFF", false},
	{PostgreSQLFile, "fsync", "on", false},
	{PostgreSQLFile, "full_page_writes", "on", false},
}

// split takes an address apart.
func split(addr string) (file string, s setting, err error) {
	file, name := path.Dir(addr), path.Base(addr)
	i := slices.IndexFunc(settings, func(s setting) bool { return s.file == path.Base(file) && s.name == name })
	switch {
	case path.Base(file) != MySQLFile && path.Base(file) != PostgreSQLFile:
		err = fmt.Errorf("%q is no option file of bulkhead's: its name is %s for MySQL and MariaDB, %s for PostgreSQL",
			file, MySQLFile, PostgreSQLFile)
	case !path.IsAbs(file) || path.Clean(addr) != addr || strings.ContainsFunc(addr, func(r rune) bool {
		return r <= ' ' || r > '~' || r == '\\'
	}):
		err = fmt.Errorf("%q is not the path of a file: write it from / on, without blanks", file)
	case i < 0:
		var known []string
		for _, s := range settings {
			if s.file == path.Base(file) {
				known = append(known, s.name)
			}
		}
		err = fmt.Errorf("%q is not a setting that is set in %s: %s are", name, path.Base(file),
			strings.Join(known, ", "))
	default:
		s = settings[i]
	}
	return file, s, err
}

// Check says what is wrong with a setting and its value.
func Check(addr, value string) error {
	_, s, err := split(addr)
	if err == nil && value != s.value {
		err = fmt.Errorf("%s takes no %q here, but %s: with another value data can be lost; write it into a file of "+
			"your own", s.name, value, s.value)
	}
	return err
}

// Settable says whether a setting of a server can be set in a file of this name.
func Settable(file, name, value string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool {
		return s.file == file && s.name == name && s.value == value
	})
}

// Target is that of a setting.
func Target(addr string) change.Target { return change.Target{Kind: Kind, Addr: addr} }

// File is the option file that a target is of.
func File(t change.Target) string { return path.Dir(t.Addr) }

// Counts says in words from when on a value counts; "" is said of another target.
func Counts(t change.Target, value string) string {
	file, s, err := split(t.Addr)
	switch {
	case t.Kind != Kind || err != nil:
	case path.Base(file) == PostgreSQLFile:
		return "PostgreSQL reads its files again, and has it at once"
	case value != s.value:
		return "a server that runs keeps the value that it has until it starts next; bulkhead restarts none"
	default:
		text := "it counts when the server starts next; bulkhead restarts none"
		if global := SetGlobal(s.name, s.value); global != "" {
			text += ". One that runs has it by `" + global + "`"
		}
		return text
	}
	return ""
}

// SetGlobal is the statement that gives a setting to a MySQL that runs; "" where none does.
func SetGlobal(name, value string) string {
	if slices.ContainsFunc(settings, func(s setting) bool { return s.name == name && s.running }) {
		return "SET GLOBAL " + Line(name, value)
	}
	return ""
}

// Line is a setting as its file has it.
func Line(name, value string) string { return name + " = " + value }

// Body is what a file with such lines has, without bulkhead's heading.
func Body(file string, lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	if path.Base(file) == MySQLFile {
		lines = append([]string{section}, lines...)
	}
	return strings.Join(lines, "\n") + "\n"
}

const section = "[mysqld]"
