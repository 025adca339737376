// Package conformance holds what systemd must do as one list of assertions that runs on the model of package
// systemdfake and, in the lab's machines, on a real PID 1. An assertion that only one of them passes is a fault of the
// model.
package conformance

import (
	"slices"
	"testing"
)

var cases = slices.Concat(unitCases, jobCases, transientCases, propertyCases, fileCases, watchCases)

// OverBus are the cases that are worth a second run over the other socket of a real systemd: what PID 1 does is the
// same, how signals, errors and long answers travel is not.
var OverBus = []string{"a unit that is not there", "results of jobs", "a scope", "the table of properties", "the watch"}

// Brief are the cases on which the verbs stand, for a run that has little time.
var Brief = []string{
	"a limit reaches its file", "a reload undoes what was written behind its back", "all or none", "a keeper",
	"a scope", "a slice that waits for the restart",
}

// Run runs every case, or those named, on a subject of its own.
func Run(t *testing.T, newSubject func(*testing.T) Subject, only ...string) {
	t.Helper()
	for _, name := range only {
		if !slices.ContainsFunc(cases, func(c testCase) bool { return c.name == name }) {
			t.Errorf("there is no case %q", name)
		}
	}
	for _, c := range cases {
		if len(only) > 0 && !slices.Contains(only, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.run(&bench{T: t, Subject: newSubject(t), ctx: t.Context()}) })
	}
}

// lazyReloadSince is a release whose daemon-reload reads limits and leaves the kernel's files as they are until any
// property of the unit is set: 257 does so, seen on Debian 13 over 15 s and two reloads; 252 writes them anew. Which
// release between the two began with it was not looked for.
const lazyReloadSince = 257
