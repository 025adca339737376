package verdict

import (
	"fmt"
	"path"
	"slices"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/filecon"
)

// label finds files that have another label than they should have, and such that have one that nobody chose.
func (j *judge) label(permissions []string) bool {
	socket := j.Class == "unix_stream_socket" && slices.Contains(permissions, "connectto")
	if !socket && (!slices.Contains(fileClasses, j.Class) || j.left[0].Target.Domain()) {
		return false
	}
	paths := pathsOf(j.left)
	if socket {
		paths = paths[:min(shown, len(paths))]
	}
	found, others := map[Kind]int{}, []string{}
	for _, at := range paths {
		kind, why := j.labelOf(at, socket, permissions)
		if kind == "" {
			others = append(others, at)
		}
		if found[kind]++; found[kind] > shown || why == "" {
			continue
		}
		j.because("%s", why)
		if kind == Label {
			j.fix("restorecon -v %s", Quoted(at))
		}
	}
	if more := found[Label] - shown; more > 0 {
		j.because("and so have %d paths more", more)
	}
	switch {
	case found[Label] > 0:
		j.Kind = Label
		if len(others) > 0 {
			j.fix("run this again on a newer log: for %d other paths that does not help", len(others))
		}
	case found[Stale] > 0 && len(others) == 0:
		j.Kind = Stale
		j.fix("nothing: leave these lines out")
	case !socket:
		return j.place(others, permissions)
	}
	return j.Kind != ""
}

// labelOf compares the label of a path, or of a socket's file, with the one that it should have.
func (j *judge) labelOf(at string, socket bool, permissions []string) (kind Kind, why string) {
	class := j.Class
	if socket {
		class = "sock_file"
		kind, why = j.socketLabel(at)
	} else {
		kind, why = j.fileLabel(at, permissions)
	}
	if kind == Label {
		want, _ := j.Files.Expected(at, class)
		j.remedy(Remedy{Path: at, Class: class, Types: []string{want}, Listed: true})
	}
	return kind, why
}

// socketLabel compares the label of a socket's file: a connection is allowed by both, the socket and its file.
func (j *judge) socketLabel(at string) (kind Kind, why string) {
	if j.Files == nil {
		j.undecided("whether %s has the label that it should have, only its host tells", at)
		return "", ""
	}
	want, known := j.Files.Expected(at, "sock_file")
	now, has := j.Files.Actual(at)
	switch {
	case !known || !has:
		j.undecided("whether %s has the label that it should have: it is not there now, or no file context is for it",
			at)
	case want != now:
		return Label, mislabelled(at, now, want)
	}
	return "", ""
}

// fileLabel compares the type in the log with what the file contexts give the path.
func (j *judge) fileLabel(at string, permissions []string) (kind Kind, why string) {
	if j.Files == nil {
		return "", ""
	}
	want, known := j.Files.Expected(at, j.Class)
	if !known || want == j.Target {
		return "", ""
	}
	if j.Policy != nil {
		if a := j.Policy.Access(j.Source, want, j.Class, permissions); a.Known && len(a.Missing) > 0 {
			return "", fmt.Sprintf("%s should have the type %s, with which it would be denied, too", at, want)
		}
	}
	if now, has := j.Files.Actual(at); has && now == want {
		return Stale, fmt.Sprintf("%s has the type %s by now, as it should have; it had %s", at, want, j.Target)
	}
	return Label, mislabelled(at, j.Target, want)
}

func mislabelled(at, now, want string) string {
	return fmt.Sprintf("%s has the type %s; the file contexts of this host give it %s", at, now, want)
}

// place finds files below a directory whose type is for no program in particular: they want a label of their own.
func (j *judge) place(paths, permissions []string) bool {
	never := slices.Contains(neverMeant, j.Target)
	if !never && (!slices.Contains(generalTypes, j.Target) || !slices.ContainsFunc(permissions, writes)) {
		return false
	}
	var may []string
	if j.Policy != nil {
		if may = j.Policy.Types(stem(j.Source), j.Source, j.Class, permissions); len(may) == 0 {
			j.because("%s is a type of no program in particular, and no type of %s's own would be allowed", j.Target,
				j.Source)
			return false
		}
	}
	j.Kind = Label
	if never {
		j.because("%s is what files have that no file context is for", j.Target)
	} else {
		j.because("%s is a type that many programs use: a rule would let %s change the files of all of them", j.Target,
			j.Source)
	}
	where := "PATH"
	if len(paths) > 0 {
		where = path.Clean(paths[0]) // the kernel writes "/srv/db/" for the directory of a file
	} else {
		j.undecided("the path: the log has only the name %s (an audit rule makes the kernel write PATH records)",
			some(namesOf(j.left)))
	}
	if j.Policy == nil {
		j.undecided("which type it should have: only the loaded policy tells what %s may use", j.Source)
		j.fix("run this again on the host that wrote the log")
		return true
	}
	j.because("of its own types %s may use %s", j.Source, some(may))
	if where != "PATH" && j.Class != "dir" && (path.Dir(where) == "/tmp" || path.Dir(where) == "/var/tmp") {
		j.fix("let the database use a directory of its own in place of %s (tmpdir), and label that", path.Dir(where))
		return true
	}
	for _, at := range paths {
		j.remedy(Remedy{Path: at, Class: j.Class, Types: may})
	}
	kind := may[0]
	if len(may) > 1 {
		kind = "TYPE"
	}
	j.fix("semanage fcontext -a -t %s %s, then restorecon -R -v %s%s", kind, Quoted(filecon.Pattern(where)+"(/.*)?"),
		Quoted(where), map[bool]string{true: "; TYPE is one of those above"}[kind == "TYPE"])
	return true
}

func pathsOf(denials []avc.Denial) []string {
	return distinct(denials, func(d avc.Denial) string { return d.Path })
}

func namesOf(denials []avc.Denial) []string {
	return distinct(denials, func(d avc.Denial) string { return d.Name })
}
