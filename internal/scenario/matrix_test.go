package scenario

import (
	"strings"
	"testing"

	"bulkhead/internal/policy"
)

const cells = `version: 1
name: cells
title: a matrix
databases:
  db: {engine: postgresql, options: ["-c", "work_mem=${4*cpus}MB"]}
loads:
  client: {program: pgbench, on: db}
matrix:
  load: client
  pages: [4KiB, 1GiB]
  sizes: {fits: "256", spills: "cpus*1024"}
  clients: {few: "2"}
shape:
  - {what: gain, measure: p1g_fits_few.tps / p4k_fits_few.tps, least: "1", beyond: "memory/1024"}
`

// A matrix makes an arm of each combination; the database starts anew for each.
func TestMatrix(t *testing.T) {
	s, err := Parse(policy.Source{Path: "cells.yaml", Text: cells})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range s.Arms {
		names = append(names, a.Name)
		if a.Cell == nil || len(a.Restart) != 1 || a.Restart[0] != "db" {
			t.Errorf("arm %+v", a)
		}
	}
	if got := strings.Join(names, " "); got != "p4k_fits_few p4k_spills_few p1g_fits_few p1g_spills_few" {
		t.Errorf("arms are %s", got)
	}
	if c := s.Arms[3].Cell; s.Control != "p4k_fits_few" || c.Page.Bytes != 1<<30 || c.Size.Is.String() != "cpus*1024" {
		t.Errorf("control %q, cell %+v", s.Control, c)
	}
	if alone := s.Alone(); alone.Matrix != nil || alone.Arms[0].Cell != nil || s.Arms[0].Cell == nil {
		t.Error("what is measured alone is no cell, and the scenario stays as it is")
	}
}

func TestMatrixProblems(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"page size":    {"1GiB", "1GB", "cells.yaml:10:17"},
		"arms beside":  {"shape:", "arms: {a: {text: b}}\nshape:", "leave arms: out"},
		"no cell":      {`{few: "2"}`, "{}", "the matrix has no cell"},
		"load":         {"load: client", "load: clients", "a matrix is of one load"},
		"program":      {"pgbench", "sysbench", "a matrix is of one load"},
		"not of it":    {"4KiB", "transparent", "no memory of a postgresql is in pages of transparent"},
		"quantity":     {"cpus*1024", "gpus*1024", `quantity "gpus"`},
		"name":         {"spills:", "not-fits:", `"not-fits" is no name in sizes`},
		"no such cell": {"p1g_fits_few", "p2m_fits_few", `arm "p2m_fits_few" is not in this scenario`},
		"option":       {"${4*cpus}", "${4*gpus}", `value "gpus"`},
		"beyond":       {"memory/1024", "memry/1024", `quantity "memry"`},
	} {
		text := strings.Replace(cells, c.from, c.to, 1)
		_, err := Parse(policy.Source{Path: "cells.yaml", Text: text})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
