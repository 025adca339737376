package settings

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
)

// What each flavour takes of a pool, by its settings and version.
func TestLarge(t *testing.T) {
	type set = map[string]string
	const page = 2 * mib // 131 pages are 53 of the key cache, 62 of Aria, and 8 of each log buffer
	for name, c := range map[string]struct {
		flavor, version string
		set             set
		want            int64 // pages
	}{
		"MySQL, defaults":       {"", "8.0.36", nil, 66},
		"MySQL, its pools":      {"", "8.0.36", set{"innodb_buffer_pool_size": "1G"}, 8 * 66},
		"MySQL, rounded up":     {"", "5.7.40", set{"innodb_buffer_pool_size": "1025M"}, 16*66 + 4},
		"MySQL, small chunks":   {"", "8.4.1", set{"innodb_buffer_pool_chunk_size": "2M"}, 64 * 2},
		"MySQL, more pools":     {"", "8.4.1", set{"innodb_buffer_pool_instances": "2"}, 2 * 33},
		"Percona, a small key":  {engine.Percona, "8.0.36", set{"key_buffer_size": "1M"}, 66},
		"MariaDB, one piece":    {engine.MariaDB, "10.11.19", nil, 64 + 3 + 53 + 62 + 2*8},
		"MariaDB, its extents":  {engine.MariaDB, "11.8.2", set{"innodb_buffer_pool_size": "129M"}, 68 + 3 + 131},
		"MariaDB, room to grow": {engine.MariaDB, "11.4.7", set{"innodb_buffer_pool_size_max": "1G"}, 512 + 3 + 131},
		"MariaDB, chunks":       {engine.MariaDB, "10.6.20", set{"innodb_buffer_pool_size": "300M"}, 3*64 + 131},
		"MariaDB, small chunks": {engine.MariaDB, "10.11.6", set{"innodb_buffer_pool_size": "300M"}, 50*3 + 131},
		"MariaDB, no version":   {engine.MariaDB, "", set{"innodb_log_buffer_size": "1M"}, 64 + 3 + 53 + 62},
		"MariaDB, a small Aria": {engine.MariaDB, "10.11.19", set{
			"aria_pagecache_buffer_size": "1M"}, 64 + 3 + 53 + 16},
		"MariaDB, small logs": {engine.MariaDB, "10.11.19", set{"innodb_log_buffer_size": "2M"}, 64 + 3 + 53 + 62 + 2},
		"MariaDB, large tables": {engine.MariaDB, "10.11.19", set{"key_buffer_size": "65270K",
			"aria_pagecache_buffer_size": "1M"}, 64 + 3 + 27 + 16},
		"dedicated, not told":    {"", "8.0.36", set{"innodb_dedicated_server": "ON"}, -1},
		"a size nobody can read": {"", "8.0.36", set{"innodb_buffer_pool_size": "much"}, -1},
		"MySQL, no pool":         {"", "8.0.36", set{"innodb_buffer_pool_size": "0"}, 3},
		"MySQL, many pools":      {"", "8.0.36", set{"innodb_buffer_pool_instances": "9000000000000"}, 64 * 2},
		"MySQL, no pages":        {"", "8.0.36", set{"innodb_page_size": "0"}, -1},
		"MySQL, a huge chunk":    {"", "8.0.36", set{"innodb_buffer_pool_chunk_size": "1152921504606846976"}, -1},
		"MySQL, pools below 0":   {"", "8.0.36", set{"innodb_buffer_pool_instances": "-1"}, -1},
		"MariaDB, no pool":       {engine.MariaDB, "10.6.20", set{"innodb_buffer_pool_size": "0"}, 3 + 131},
		"MariaDB, small, no pool": {engine.MariaDB, "10.11.6", set{"innodb_buffer_pool_size": "0"},
			3 + 131},
	} {
		s := Settings{get: func(name, byDefault string) (options.Setting, error) {
			if value, is := c.set[name]; is {
				return options.Setting{Value: value, From: "my.cnf:3"}, nil
			}
			if byDefault == "" {
				return options.Setting{}, errors.New("nothing sets it")
			}
			return options.Setting{Value: byDefault, From: "default"}, nil
		}}
		all, err := s.Large(engine.Instance{Engine: engine.MySQL, Flavor: c.flavor, Version: c.version}, page)
		pages, said := int64(0), ""
		for _, l := range all {
			pages += (l.Bytes + page - 1) / page * l.Times
			said += fmt.Sprintf("%s %d x %d; ", l.Name, l.Bytes, l.Times)
		}
		if c.want < 0 != (err != nil) || err == nil && pages != c.want {
			t.Errorf("%s: %d pages, %v, want %d: %s", name, pages, err, c.want, said)
		}
		if set := c.set["innodb_buffer_pool_size"]; set != "" && err == nil && all[0].From != "my.cnf:3" &&
			!strings.HasPrefix(all[0].From, "my.cnf:3 ") {
			t.Errorf("%s: it is from %q", name, all[0].From)
		}
	}
}

// A server does not tell of settings that its version does not have.
func TestLargeOfAServer(t *testing.T) {
	told := map[string]string{"innodb_buffer_pool_size": "134217728", "key_buffer_size": "1",
		"key_cache_block_size": "1024", "innodb_page_size": "16384",
		"aria_pagecache_buffer_size": "1", "innodb_log_buffer_size": "1"}
	s := Settings{version: "10.11.19-MariaDB", get: func(name, _ string) (options.Setting, error) {
		value, is := told[name]
		if !is {
			return options.Setting{}, errors.New("the server tells no " + name)
		}
		return options.Setting{Value: value, From: "the server"}, nil
	}}
	inst := engine.Instance{Engine: engine.MySQL, Flavor: engine.MariaDB}
	if all, err := s.Large(inst, 2*mib); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	delete(told, "aria_pagecache_buffer_size")
	if _, err := s.Large(inst, 2*mib); err == nil || !strings.Contains(err.Error(), "aria_pagecache_buffer_size") {
		t.Errorf("without a setting that it has: %v", err)
	}
}
