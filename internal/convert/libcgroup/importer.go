package libcgroup

import (
	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/policy"
)

// cgImport turns parsed files into a draft.
type cgImport struct {
	*convert.Draft
	parsed   []*cgFile
	defaults *cgPerm
	defIn    *cgFile
	byName   map[string]*described
	groups   []*described
	said     map[*convert.Group]cgSaid
	rules    bool // are read with it
	// led are the rules that lead to each group or below it, by its path, and mounted where the files have a controller
	// mounted.
	led     map[string][]led
	mounted map[string]string
	used    map[*cgGroup]bool
	owned   map[*cgPerm][2]ownership // the perm sections that were read
	// templates are those of all files by name, the first of each; made when a rule asks for one.
	templates map[string]templateOf
}

// cgSaid is what a file says of a group.
type cgSaid struct {
	files []kernelfile.Param
	perm  *cgPerm
}

// ownership is who owns files of a group, and with which mode.
type ownership struct {
	user, group, mode, dir string
	at                     policy.Pos
}

// described is a group with what its sections say, in the order in which libcgroup carries them out: what a later one
// says again counts.
type described struct {
	name     string // clean
	at       policy.Pos
	what     string // the name as it stands there
	files    []kernelfile.Param
	index    map[string]int // of files, by name
	sections []sectionOf
	perms    []permOf
	to       *convert.Group // nil when a policy cannot have it
}

// sectionOf is a section with its file.
type sectionOf struct {
	file *cgFile
	cgSection
}

// permOf is what one description of a group says of its owners: perm may be nil, and defaults is the default section.
type permOf struct {
	file     *cgFile
	perm     *cgPerm
	defaults *cgPerm
	defIn    *cgFile
}

// templateOf is a template with its file.
type templateOf struct {
	file  *cgFile
	group *cgGroup
}
