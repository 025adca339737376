package options

import (
	"encoding/xml"
	"regexp"
	"strings"
)

// mysqlValue takes a value's blanks, quotes and comment away.
func mysqlValue(v string) string {
	v = strings.TrimSpace(v)
	if len(v) >= 2 && (v[0] == '"' || v[0] == '\'') {
		if end := strings.IndexByte(v[1:], v[0]); end >= 0 {
			return v[1 : 1+end]
		}
	}
	if before, _, ok := strings.Cut(v, "#"); ok {
		v = strings.TrimSpace(before)
	}
	return v
}

// ParseINI reads "name = value" below "[section]" as "section.name". The first of a name wins.
func ParseINI(text string) map[string]string {
	values := make(map[string]string)
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			section, _, _ = strings.Cut(line[1:], "]")
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		name = strings.TrimSpace(section) + "." + strings.TrimSpace(name)
		if _, there := values[name]; !there {
			values[name] = mysqlValue(value)
		}
	}
	return values
}

// PostgresArgs reads the postmaster's options into the names of its settings: -D, -p, -k, -c name=value,
// --name=value.
func PostgresArgs(args []string) map[string]string {
	opts := make(map[string]string)
	set := func(text string) {
		name, value, _ := strings.Cut(text, "=")
		opts[strings.ToLower(strings.ReplaceAll(name, "-", "_"))] = value
	}
	short := map[byte]string{'D': "data_directory", 'p': "port", 'k': "unix_socket_directories"}
	for i := 1; i < len(args); i++ {
		arg := args[i]
		if long, ok := strings.CutPrefix(arg, "--"); ok {
			set(long)
			continue
		}
		if len(arg) < 2 || arg[0] != '-' {
			continue
		}
		value := arg[2:]
		name, known := short[arg[1]]
		if (known || arg[1] == 'c') && value == "" && i+1 < len(args) {
			i++
			value = args[i]
		}
		switch {
		case known:
			opts[name] = value
		case arg[1] == 'c':
			set(value)
		}
	}
	return opts
}

var postgresSetting = regexp.MustCompile(`^\s*([A-Za-z_]\w*)(?:\s*=\s*|\s+)('(?:[^']|'')*'|[^'#\s][^#\s]*)\s*(?:#.*)?$`)

// ParsePostgresConfig adds the settings of a postgresql.conf; include directives are not followed.
func ParsePostgresConfig(text string, config map[string]string) {
	for line := range strings.Lines(text) {
		m := postgresSetting.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		value := m[2]
		if value[0] == '\'' {
			value = strings.ReplaceAll(value[1:len(value)-1], "''", "'")
		}
		config[strings.ToLower(m[1])] = value
	}
}

// ParseClickHouseConfig reads the texts right below the root of the file, <clickhouse> or before 21.10 <yandex>.
func ParseClickHouseConfig(text string) map[string]string {
	values := make(map[string]string)
	d := xml.NewDecoder(strings.NewReader(text))
	depth, name := 0, ""
	for {
		token, err := d.Token()
		if err != nil {
			return values // the end, or what was understood so far
		}
		switch t := token.(type) {
		case xml.StartElement:
			if depth++; depth == 2 {
				name = t.Name.Local
			}
		case xml.EndElement:
			depth--
			name = ""
		case xml.CharData:
			if value := strings.TrimSpace(string(t)); depth == 2 && name != "" && value != "" {
				values[name] = value
			}
		}
	}
}
