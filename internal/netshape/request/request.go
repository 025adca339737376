// Package request has changes of interfaces, and of programs on cgroup2 directories, in the words of package change: as
// plans hand them on and a journal keeps them.
package request

import (
	"encoding/json"
	"fmt"

	"bulkhead/internal/change"
	"bulkhead/internal/netshape"
)

// Kind is the kind of a change of an interface or of a program on a cgroup2 directory. It is a request and no value:
// what New says is for people, and Do and Undo hold the requests. The address is the interface, or the directory of a
// program.
const Kind change.Kind = "network"

// Of is a change and those that take it back as a change of Kind; Parse is the inverse.
func Of(c netshape.Change, undo []netshape.Change) change.Change {
	at := c.Device
	if at == "" && c.Program != nil {
		at = c.Program.Cgroup
	}
	do, err1 := json.Marshal(c)
	back, err2 := json.Marshal(undo)
	if err1 != nil || err2 != nil {
		panic(fmt.Sprint("encode a change of the network: ", err1, err2)) // strings, numbers and bytes
	}
	return change.Change{
		Target: change.Target{Kind: Kind, Addr: at}, New: c.String(), Do: string(do), Undo: string(back),
	}
}

// Parse gives what a change of Kind asks the kernel for.
func Parse(r change.Change) (c netshape.Change, undo []netshape.Change, err error) {
	if err = json.Unmarshal([]byte(r.Do), &c); err == nil && r.Undo != "" {
		err = json.Unmarshal([]byte(r.Undo), &undo)
	}
	if err != nil {
		err = fmt.Errorf("decode %s: %w", r.Target, err)
	}
	return c, undo, err
}
