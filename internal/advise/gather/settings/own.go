package settings

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable/optionfile"
)

// Place is where a setting of a server can stand in an option file of bulkhead's own; without a file, why it cannot.
type Place struct{ File, Why string }

// Places finds the places of a setting for instances of a host, by their names: a file that the server reads by
// !includedir or include_dir, with nothing after it that sets another value, and that no other server reads.
func Places(h *host.Host, names []string, name, value string) (map[string]Place, error) {
	all, err := recognise.OfHost(h)
	if err != nil {
		return nil, err
	}
	places := map[string]Place{}
	for _, inst := range all {
		if slices.Contains(names, inst.Name()) {
			places[inst.Name()] = placeOf(h, inst, all, name, value)
		}
	}
	return places, nil
}

// ownFile is the name of bulkhead's file for an engine, "" for none.
func ownFile(engineName string) string {
	return map[string]string{engine.MySQL: optionfile.MySQLFile,
		engine.PostgreSQL: optionfile.PostgreSQLFile}[engineName]
}

func placeOf(h *host.Host, inst engine.Instance, all []engine.Instance, name, value string) Place {
	base := ownFile(inst.Engine)
	switch {
	case value == "":
		return Place{Why: "its value is for you to choose"}
	case !optionfile.Settable(base, name, value):
		return Place{Why: "bulkhead does not set it to this value: do so yourself"}
	case inst.Container:
		return Place{Why: "it runs in a container, which has its files from its image"}
	}
	now := readWith(h, inst, "", name, value)
	if now.barred != "" {
		return Place{Why: now.barred}
	}
	winner := ""
	for _, dir := range slices.Backward(now.listed) {
		if info, err := h.Root.Lstat(dir); err != nil || !info.IsDir() {
			continue
		}
		file := path.Join(dir, base)
		with := readWith(h, inst, file, name, value)
		if !with.ours {
			winner = cmp.Or(winner, with.from)
			continue
		}
		if config := configOf(inst); inst.Engine == engine.PostgreSQL && path.Dir(dir) != path.Dir(config) {
			return Place{Why: fmt.Sprintf("%s is not beside %s, by which bulkhead finds the server to have it read "+
				"files again: write it there yourself", dir, config)}
		}
		for _, other := range all {
			if other.Engine == inst.Engine && other.Main != inst.Main &&
				readWith(h, other, file, name, value).has(dir) {
				return Place{Why: fmt.Sprintf("%s reads files in %s, too", other.Name(), dir)}
			}
		}
		return Place{File: file}
	}
	if winner != "" {
		return Place{Why: winner + " sets it, which the server reads after any file of bulkhead's: change it there"}
	}
	return Place{Why: map[string]string{
		engine.MySQL: "its option files include no directory (!includedir) that bulkhead could have a file in",
		engine.PostgreSQL: "its postgresql.conf includes no directory that bulkhead could have a file in: add " +
			"include_dir = 'conf.d' at its end, and make the directory"}[inst.Engine]}
}

// configOf is the postgresql.conf of a PostgreSQL.
func configOf(inst engine.Instance) string {
	return cmp.Or(inst.Config, path.Join(inst.DataDir, "postgresql.conf"))
}

// HasAtOnce says whether an instance that runs has what is written into an option file of bulkhead's without a start: a
// PostgreSQL whose postgresql.conf is beside the directory of the file, as Places has it.
func HasAtOnce(h *host.Host, instance, file string) bool {
	all, _ := recognise.OfHost(h) // of none there is no such instance
	return slices.ContainsFunc(all, func(inst engine.Instance) bool {
		return inst.Name() == instance && inst.Engine == engine.PostgreSQL && !inst.Container &&
			path.Dir(path.Dir(file)) == path.Dir(configOf(inst))
	})
}

// reading is what a server reads of one setting.
type reading struct {
	listed []string // directories that were included, in order
	from   string   // the last line that sets it
	ours   bool     // that is the one in bulkhead's file
	barred string   // why no file can set it
}

func (r reading) has(dir string) bool { return slices.Contains(r.listed, dir) }

// readWith reads the files of a server as if one of bulkhead's were there with a setting; "" is none.
func readWith(h *host.Host, inst engine.Instance, file, name, value string) (r reading) {
	list, err := h.Proc.Processes(procfs.Options{PIDs: []int{inst.Main.PID}})
	if err != nil || len(list) == 0 {
		r.barred = "its process cannot be read"
		return r
	}
	p := &list[0]
	body := optionfile.Body(file, []string{optionfile.Line(name, value)})
	source := &overlay{ProcessSource: recognise.SourceOf(h), file: file, text: body}
	names := func(dir string) []string {
		dir = path.Clean(dir)
		r.listed = append(r.listed, dir)
		all := lister(h, p.PID)(dir)
		if dir == path.Dir(file) && !slices.Contains(all, path.Base(file)) {
			all = append(all, path.Base(file))
		}
		return all
	}
	reader := options.Reader{Source: source}
	switch inst.Engine {
	case engine.MySQL:
		o := reader.MySQLWith(p, names)
		_, r.from = o.Switched(name)
		if strings.Contains(string(reader.File(p.PID, path.Join(inst.DataDir, "mysqld-auto.cnf"))),
			strconv.Quote(name)) {
			r.barred = "mysqld-auto.cnf sets it, which is read last: SET PERSIST " + name + " = " + value
		}
	case engine.PostgreSQL:
		set, unread := reader.PostgresSettings(p, configOf(inst), inst.DataDir, names)
		r.from = set[name].From
		if len(unread) > 0 {
			r.barred = "could not read " + strings.Join(unread, ", ")
		}
	}
	r.ours = file != "" && r.from == file+":"+strconv.Itoa(strings.Count(body, "\n"))
	return r
}

// overlay is a source with one file more, or another text of it.
type overlay struct {
	options.ProcessSource
	file, text string
}

// ReadRootFile gives the text of that file.
func (o *overlay) ReadRootFile(pid int, name string, limit int64) ([]byte, error) {
	if o.file != "" && name == o.file {
		return []byte(o.text), nil
	}
	return o.ProcessSource.ReadRootFile(pid, name, limit)
}
