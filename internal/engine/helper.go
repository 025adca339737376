package engine

import (
	"bulkhead/internal/linux/procfs"
)

// The kinds of helpers, as a policy's `helper:` names them.
const (
	HelperAgent    = "agent"    // managers and monitors that stay
	HelperBackup   = "backup"   // whatever copies or dumps a database
	HelperExporter = "exporter" // answers a monitoring system
	HelperListener = "listener" // takes connections for instances, maybe for several
	HelperRestore  = "restore"  // whatever loads a dump
	HelperSave     = "save"     // the child of Redis that writes a snapshot
	HelperTool     = "tool"     // checks, repairs and changes of schema
)

// Helper is a program that serves an instance.
type Helper struct {
	ID   procfs.ID `json:"id"`
	Kind string    `json:"kind"` // HelperBackup
	Tool string    `json:"tool"` // "pg_basebackup"
	// Sure says that it serves this instance. Else it may, and nothing tells which of several: it is in the
	// lists of all of them.
	Sure bool `json:"sure"`
	// How says what shows it: "--port=3306", "process 812, of the instance, started it".
	How string `json:"how"`
	// Serves is how many instances of this host it serves; more than one for a shared listener.
	Serves int  `json:"serves"`
	Rate   Rate `json:"rate"`
}

// Rate is what a helper can do by itself to go slower.
type Rate struct {
	Option string `json:"option,omitempty"` // "--max-rate"; "" for none
	// Given is the option as it was given on the command line or in the environment, "" when it was not seen there.
	Given string `json:"given,omitempty"`
}
