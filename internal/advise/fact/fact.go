// Package fact holds what advice is given from: values of a host, of its disks, its mounts and its database instances,
// each with where it was read, or unknown with the reason.
//
// Table describes every fact: its name, type and unit, where it comes from, and what it means. The declarations of the
// rules' expressions and the documents are made from it. Nothing here reads anything; package gather does.
package fact

import (
	"fmt"
	"strconv"
	"strings"
)

// Scope is what a fact belongs to: the host, or one disk, mount or instance of it.
type Scope string

// The scopes. A fact's name begins with its scope: "host.swappiness".
const (
	Host     Scope = "host"
	Disk     Scope = "disk"
	Mount    Scope = "mount"
	Instance Scope = "instance"
)

// Type is the type of a fact's value.
type Type string

// The types of values, and what they are in Go.
const (
	Number Type = "number" // int64
	Text   Type = "text"   // string
	Flag   Type = "flag"   // bool
	List   Type = "list"   // []string
)

// Units of numbers that are written in a way of their own.
const (
	Bytes   = "bytes"
	Percent = "%"
)

// Unlimited is the least amount that is written as no limit.
const Unlimited = 1 << 50

// Row describes one fact.
type Row struct {
	Name   string // "host.swappiness"
	Type   Type
	Unit   string // of a number: "bytes", "%", "s"; "" for a plain count
	Source string // where it is read
	Doc    string // what it is
}

// Scope is the scope that the name begins with.
func (r Row) Scope() Scope {
	scope, _, _ := strings.Cut(r.Name, ".")
	return Scope(scope)
}

// Value is what a fact is. Exactly one of Is and Unknown is set.
type Value struct {
	Is      any    // int64, string, bool or []string, by the type of the fact
	From    string // "/proc/sys/vm/swappiness", "/etc/my.cnf:12"
	Unknown string // why there is no value
}

// Known is a value with where it was read.
func Known(is any, from string) Value { return Value{Is: is, From: from} }

// Unknown is the lack of a value, with its reason.
func Unknown(format string, args ...any) Value { return Value{Unknown: fmt.Sprintf(format, args...)} }

// Values are facts by name.
type Values map[string]Value

// Get is a fact's value. A fact that nobody has read is unknown.
func (v Values) Get(name string) Value {
	value, ok := v[name]
	switch {
	case !ok:
		return Unknown("not read")
	case value.Is == nil && value.Unknown == "":
		return Unknown("read without a result")
	}
	return value
}

// Object is one disk, mount or instance, or the host.
type Object struct {
	Name   string // "sda", "/srv", "mysql3306"; "" for the host
	Values Values
}

// Set is all that is known of a host.
type Set struct {
	Host                     Values
	Disks, Mounts, Instances []Object
	Notes                    []string // what was not looked at, and why, where no fact says it
}

// Of gives the objects of a scope.
func (s *Set) Of(scope Scope) []Object {
	switch scope {
	case Disk:
		return s.Disks
	case Mount:
		return s.Mounts
	case Instance:
		return s.Instances
	default:
		return []Object{{Values: s.Host}}
	}
}

// Format writes a value of a fact for people: amounts of memory with a unit, a list with blanks between.
func Format(r Row, is any) string {
	switch v := is.(type) {
	case int64:
		if v >= Unlimited {
			return "unlimited"
		}
		switch r.Unit {
		case Bytes:
			return Size(v)
		case "":
			return strconv.FormatInt(v, 10)
		case Percent:
			return strconv.FormatInt(v, 10) + " %"
		}
		return strconv.FormatInt(v, 10) + " " + r.Unit
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case []string:
		if len(v) == 0 {
			return "none"
		}
		return strings.Join(v, " ")
	case string:
		if v == "" {
			return "none"
		}
		return v
	}
	return fmt.Sprint(is)
}

// Size writes bytes with a binary unit and one decimal: "1.5 GiB".
func Size(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"}
	at, f := 0, float64(n)
	for ; at < len(units)-1 && (f >= 1024 || f <= -1024); at++ {
		f /= 1024
	}
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0") + " " + units[at]
}
