// Package users maps numbers of users and groups to their names and back, by /etc/passwd and /etc/group below a root
// directory. Names keeps what it read for some seconds and is safe for concurrent use.
package users

import (
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/linux/sysroot"
)

// userNamesLive is how long names are kept: long enough for one pass over all processes, short
// enough that a new user is known soon.
const userNamesLive = 10 * time.Second

// Names maps users and groups to their names and back. /etc/passwd and /etc/group below the root
// come first; on the live machine the system is asked for others (which a build without cgo answers
// from the same files).
type Names struct {
	root   *sysroot.FS
	mu     sync.Mutex
	read   time.Time
	users  names
	groups names
}

// names are the entries of one file and what the system answered beyond them.
type names struct {
	byID   map[int]string
	byName map[string]int // -1: nobody has it
}

// New reads the accounts in the files below root.
func New(root *sysroot.FS) *Names { return &Names{root: root} }

// UserName returns the name of a user, or the number when it has none.
func (u *Names) UserName(uid int) string {
	return u.name(uid, &u.users, func(id string) (string, error) {
		found, err := user.LookupId(id)
		if err != nil {
			return "", err
		}
		return found.Username, nil
	})
}

// GroupName returns the name of a group, or the number when it has none.
func (u *Names) GroupName(gid int) string {
	return u.name(gid, &u.groups, func(id string) (string, error) {
		g, err := user.LookupGroupId(id)
		if err != nil {
			return "", err
		}
		return g.Name, nil
	})
}

// UserID returns the number of a user: of that name, or the number itself when name is one.
func (u *Names) UserID(name string) (int, bool) {
	return u.id(name, &u.users, func(name string) (string, error) {
		found, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return found.Uid, nil
	})
}

// GroupID returns the number of a group: of that name, or the number itself when name is one.
func (u *Names) GroupID(name string) (int, bool) {
	return u.id(name, &u.groups, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
}

func (u *Names) name(id int, list *names, ask func(string) (string, error)) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	if name, found := list.byID[id]; found {
		return name
	}
	name := strconv.Itoa(id)
	if u.root.Live() {
		if answer, err := ask(name); err == nil {
			name = answer
		}
	}
	list.byID[id] = name
	return name
}

func (u *Names) id(name string, list *names, ask func(string) (string, error)) (int, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	id, found := list.byName[name]
	if !found {
		id = u.ask(name, ask)
		list.byName[name] = id
	}
	return id, id >= 0
}

// ask returns -1 for a name that nobody has.
func (u *Names) ask(name string, ask func(string) (string, error)) int {
	if u.root.Live() {
		if answer, err := ask(name); err == nil {
			name = answer
		}
	}
	id, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return -1
	}
	return int(id)
}

// refresh reads the files again when they are old. A host without them, as a container image may
// be, has numbers only.
func (u *Names) refresh() {
	if u.users.byID != nil && time.Since(u.read) < userNamesLive {
		return
	}
	u.read = time.Now()
	u.users = u.readNames("/etc/passwd")
	u.groups = u.readNames("/etc/group")
}

func (u *Names) readNames(file string) names {
	text, err := u.root.ReadFile(file)
	if err != nil {
		text = nil
	}
	return parseNames(text)
}

// parseNames reads passwd(5) or group(5): "name:password:number:…". The first line of a number and of
// a name counts, as for getpwuid(3). Lines of another form (NIS's "+::::") are passed over.
func parseNames(text []byte) names {
	list := names{byID: map[int]string{}, byName: map[string]int{}}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(line, ":", 4)
		if len(fields) < 4 || fields[0] == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			continue
		}
		if _, found := list.byID[int(id)]; !found {
			list.byID[int(id)] = fields[0]
		}
		if _, found := list.byName[fields[0]]; !found {
			list.byName[fields[0]] = int(id)
		}
	}
	return list
}
