package policy

// SLO is `slo:` of a group: what its database is to keep.
type SLO struct {
	Signal string  // "p95", "heartbeat", "waits" or "work"
	Value  float64 // seconds; a part of its time, 0 to 1; units of work in a second
	DSN    string  // of the database that is asked for all but waits
	Pos    Pos
}

// SLOPart is `slo:` at the top of the file.
type SLOPart struct {
	Mode    string   // "off", "advise" or "act"; "" is advise
	Squeeze []string // paths of groups, those of templates as written; nil: the role decides
	Within  map[string]map[Key]Bound
}
