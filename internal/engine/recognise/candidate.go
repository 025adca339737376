package recognise

import (
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/tool"
	"bulkhead/internal/linux/procfs"
)

// Ordinary says that an executable is no server's, no helper's and no interpreter's: a process that runs it is nothing
// to this package, whatever its arguments are. Of one that cannot be read nobody knows.
func Ordinary(exe string) bool {
	if exe == "" {
		return false
	}
	is := programOf(&procfs.Process{Exe: exe, Args: anyArgs})
	return is.server == nil && is.tools == nil && !is.script
}

var anyArgs = []string{""}

// MayServe says whether a process may be the main process of a server, by its executable and its arguments alone. A no
// is certain; without an executable nothing is.
func MayServe(p *procfs.Process) bool {
	if p.Exe == "" {
		return true
	}
	r := programOf(p).server
	return r != nil && r.identity(p)
}

// HelperOf says what helper a process is by itself, whomever it serves: its kind, its program and the engines that
// this may serve (nil for none in particular). ok is false for a process that is none.
func HelperOf(p *procfs.Process) (kind, name string, engines []string, ok bool) {
	what := programOf(p)
	t := tool.Of(p, what.tools, what.script)
	if t == nil {
		return "", "", nil, false
	}
	return t.Kind, t.Name, t.Engines, true
}

// Joins says whether a process that has just come may belong to one of the instances although none of their
// processes started it: a helper program, or a process of an engine whose processes are known by name.
func Joins(p *procfs.Process, instances []engine.Instance) bool {
	what := programOf(p)
	of := func(engines []string) bool {
		return slices.ContainsFunc(instances,
			func(i engine.Instance) bool { return slices.Contains(engines, i.Engine) })
	}
	if r := what.server; r != nil && r.belongs != nil && r.belongs(p) {
		return of([]string{r.engine})
	}
	t := tool.Of(p, what.tools, what.script)
	return t != nil && of(t.Engines)
}

// byExecutable finds the engine, the helper program or the interpreter that an executable's base name
// belongs to: one look-up for each process, however many engines there are.
var byExecutable = func() map[string]program {
	m := make(map[string]program)
	for _, r := range recognisers {
		for _, name := range r.executables {
			p := m[name]
			p.server, p.script = r, tool.IsInterpreter(name)
			m[name] = p
		}
	}
	for i := range tool.All {
		for _, name := range tool.All[i].Executables {
			p := m[name]
			p.tools = append(p.tools, &tool.All[i])
			m[name] = p
		}
	}
	return m
}()

// programOf looks the executable of a process up. Where it cannot be read, the kernel's name for the process
// stands in, which is cut off after 15 bytes.
func programOf(p *procfs.Process) program {
	if p.Kernel || len(p.Args) == 0 || p.State == 'Z' || p.State == 'X' {
		return program{}
	}
	name := p.Exe
	if name == "" {
		if name = p.Comm; oracleProcess(p).sid != "" {
			name = "oracle" // which gives its processes names of their own
		}
	}
	name = name[strings.LastIndexByte(name, '/')+1:]
	if found, ok := byExecutable[name]; ok {
		return found
	}
	if tool.IsInterpreter(name) {
		return program{script: true}
	}
	if strings.IndexByte(name, '-') > 0 {
		return byExecutable[options.BaseProgram(name)]
	}
	return program{}
}

var recognisers = []*recogniser{
	&mysqlRecogniser, &postgresRecogniser, &redisRecogniser, &oracleRecogniser, &mongoRecogniser, &scyllaRecogniser,
	&cassandraRecogniser, &sqlserverRecogniser, &clickhouseRecogniser, &etcdRecogniser,
}

// program is what an executable's base name may stand for.
type program struct {
	server *recogniser
	tools  []*tool.Tool
	script bool // an interpreter: an argument names the program
}

// Known returns the names of the engines, sorted.
func Known() []string {
	var names []string
	for _, r := range recognisers {
		names = append(names, r.engine)
	}
	slices.Sort(names)
	return names
}

// Parts returns the parts that processes of an engine or flavour can have, sorted; nil for an
// unknown name. "" returns the parts of all engines.
func Parts(of string) []string {
	var parts []string
	for _, r := range recognisers {
		if of == "" || of == r.engine || slices.Contains(engine.Flavors(r.engine), of) {
			parts = append(parts, r.parts...)
		}
	}
	slices.Sort(parts)
	return slices.Compact(parts)
}
