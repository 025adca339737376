// Package berx reads the JSON configuration of the Oracle document's script, which made control groups from cron.
package berx

import (
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/policy"
)

// Import imports the JSON of the Oracle document's script: groups of processes by patterns over the command line, with
// limits that are shared by the disks of an ASM disk group. The error is policy.Problems.
func Import(sources []policy.Source) (*convert.Result, error) {
	r := &convert.Report{}
	d := convert.NewDraft(r)
	d.Head = append(d.Head, "Made by bulkhead import berx; a comment says which line each setting comes from.")
	for _, s := range sources {
		if in, ok := r.Open(s, nil); ok {
			im := berxImport{Draft: d, in: in}
			im.file()
		}
	}
	if len(d.Root.Children) == 0 && len(r.Problems) == 0 {
		r.Note("there is no group in what was read")
	}
	d.SettleWeights(&d.Root)
	return r.Result(d, sources)
}

type berxImport struct {
	*convert.Draft
	in *convert.Input
}

// jsonValue is a value with its place: a string, a json.Number, a bool, nil, a list or an object.
type jsonValue struct {
	value  any // of a list []jsonValue, of an object []jsonMember
	offset int
}

type jsonMember struct {
	name   string
	offset int
	value  jsonValue
}

// parseJSON reads a whole file, and keeps where everything stands.
func parseJSON(in *convert.Input) (v jsonValue, ok bool) {
	d := json.NewDecoder(strings.NewReader(in.Body))
	d.UseNumber()
	v, err := readJSON(in, d, 0)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return v, true
		}
		in.Bad(skipBlanks(in, int(d.InputOffset())), "take it out", "something follows the end of the object")
		return v, false
	}
	var syntax *json.SyntaxError
	at := int(d.InputOffset())
	if errors.As(err, &syntax) {
		at = max(int(syntax.Offset)-1, 0)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		in.Bad(len(in.Body), "close every { and [", "the file ends inside of a value")
		return v, false
	}
	in.Bad(min(at, len(in.Body)), "check braces, commas and quotes", "not valid JSON: %s",
		strings.TrimPrefix(err.Error(), "json: "))
	return v, false
}

func skipBlanks(in *convert.Input, at int) int {
	for at < len(in.Body) && strings.IndexByte(" \t\r\n,:", in.Body[at]) >= 0 {
		at++
	}
	return at
}

const deepestJSON = 32

var errDeep = errors.New("nested too deeply")

func readJSON(in *convert.Input, d *json.Decoder, depth int) (v jsonValue, err error) {
	v.offset = skipBlanks(in, int(d.InputOffset()))
	t, err := d.Token()
	if err != nil {
		return v, err
	}
	delim, composed := t.(json.Delim)
	switch {
	case !composed:
		v.value = t
		return v, nil
	case depth > deepestJSON:
		return v, errDeep
	case delim == '[':
		list := []jsonValue{}
		for d.More() {
			item, err := readJSON(in, d, depth+1)
			if err != nil {
				return v, err
			}
			list = append(list, item)
		}
		v.value = list
	default:
		members, known := []jsonMember{}, map[string]int{}
		for d.More() {
			m := jsonMember{offset: skipBlanks(in, int(d.InputOffset()))}
			name, err := d.Token()
			if err != nil {
				return v, err
			}
			m.name, _ = name.(string)
			if m.value, err = readJSON(in, d, depth+1); err != nil {
				return v, err
			}
			if i, twice := known[m.name]; twice {
				in.FailWith(in.At(m.offset), in.At(members[i].offset), "keep one of them", "key %q is here twice",
					convert.Clean(m.name))
				continue
			}
			known[m.name] = len(members)
			members = append(members, m)
		}
		v.value = members
	}
	_, err = d.Token() // the closing one
	return v, err
}

// object gives the members of an object and reports those that are not known.
func (im *berxImport) object(v jsonValue, what string, known ...string) map[string]jsonValue {
	members, ok := v.value.([]jsonMember)
	if !ok {
		im.in.Bad(v.offset, "", "%s is to be an object", what)
		return nil
	}
	all := map[string]jsonValue{}
	for _, m := range members {
		if !slices.Contains(known, m.name) {
			im.in.Bad(m.offset, "known here: "+strings.Join(known, ", "), "unknown key %q in %s", convert.Clean(m.name),
				what)
			continue
		}
		all[m.name] = m.value
	}
	return all
}

// list gives the items of a list; one that is not there is empty.
func (im *berxImport) list(all map[string]jsonValue, name string) []jsonValue {
	v, there := all[name]
	list, ok := v.value.([]jsonValue)
	if there && !ok {
		im.in.Bad(v.offset, "", "%s is to be a list", name)
	}
	return list
}

// text gives a string; "" when it is not there, and a problem when it is something else.
func (im *berxImport) text(v jsonValue, what string) string {
	text, ok := v.value.(string)
	if !ok {
		im.in.Bad(v.offset, "", "%s is to be text", what)
	}
	return text
}

func (im *berxImport) file() {
	v, ok := parseJSON(im.in)
	if !ok {
		return
	}
	top := im.object(v, "the configuration", "base", "myroot", "subsystems", "groups")
	var base, root string
	if v, there := top["base"]; there {
		base = im.text(v, "base")
	}
	if v, there := top["myroot"]; there {
		root = im.text(v, "myroot")
		im.Change(im.in.At(v.offset), "myroot "+root,
			"groups are below host.root; those that the script has made in %s are not touched: stop its cron jobs, "+
				"then remove them", strings.TrimSuffix(base, "/")+"/*/"+root)
	}
	for _, v := range im.list(top, "subsystems") {
		if name := im.text(v, "a subsystem"); !slices.Contains(kernelfile.Controllers, name) {
			kernelfile.UnknownController(im.in, name, v.offset)
		}
	}
	if _, there := top["groups"]; !there && top != nil {
		im.in.Bad(v.offset, "", "the configuration has no groups")
	}
	for _, g := range im.list(top, "groups") {
		im.one(g)
	}
}

func (im *berxImport) one(v jsonValue) {
	all := im.object(v, "a group", "name", "diskgroup", "subsystems", "processes")
	name, there := all["name"]
	if !there {
		if all != nil {
			im.in.Bad(v.offset, "", "this group has no name")
		}
		return
	}
	at := im.in.At(name.offset)
	text := im.text(name, "name")
	if strings.Trim(text, "/") == "" {
		im.in.Bad(name.offset, "", "the name of this group is empty")
		return
	}
	g := im.Draft.Group(text, at)
	if g == nil || !im.Describe(g, at, convert.From(at, "group "+text)) {
		return
	}
	disks := ""
	if v, there := all["diskgroup"]; there {
		if disks = im.text(v, "diskgroup"); disks != "" {
			disks = "asm:" + disks
		}
	}
	files := kernelfile.Params{Draft: im.Draft, G: g}
	for _, s := range im.list(all, "subsystems") {
		im.subsystem(&files, s, disks)
	}
	files.Carry()
	for _, v := range im.list(all, "processes") {
		im.process(g, v)
	}
}

func (im *berxImport) subsystem(files *kernelfile.Params, v jsonValue, disks string) {
	all := im.object(v, "a subsystem of a group", "subsystem", "limits")
	name := ""
	if v, there := all["subsystem"]; there {
		name = im.text(v, "subsystem")
		if !slices.Contains(kernelfile.Controllers, name) {
			kernelfile.UnknownController(im.in, name, v.offset)
			return
		}
	}
	for _, l := range im.list(all, "limits") {
		im.limit(files, name, l, disks)
	}
}

// limit reads one limit. Those of disks are for the disk group as a whole, and the script gives each disk as much; the
// others are added to files, as one may say how another is meant.
func (im *berxImport) limit(files *kernelfile.Params, controller string, v jsonValue, disks string) {
	all := im.object(v, "a limit", "file", "limit")
	file, ok1 := all["file"]
	limit, ok2 := all["limit"]
	if !ok1 || !ok2 {
		if all != nil {
			im.in.Bad(v.offset, "", "a limit has a file and a limit")
		}
		return
	}
	name := im.text(file, "file")
	var number string
	switch n := limit.value.(type) {
	case json.Number:
		number = n.String()
	case string:
		number = n
	default:
		im.in.Bad(limit.offset, "", "limit is to be a number")
		return
	}
	of, _, _ := strings.Cut(name, ".")
	f := kernelfile.Param{File: name, Text: number, At: im.in.At(limit.offset)}
	switch {
	case !kernelfile.Known(name):
		im.in.Bad(file.offset, kernelfile.ParametersOf(controller), "controller %s has no file %q",
			convert.Clean(controller), convert.Clean(name))
	case of != controller:
		im.in.Bad(file.offset, "", "%s is a file of %s, not of %s", name, of, convert.Clean(controller))
	case !strings.HasSuffix(name, "_device"):
		files.All = append(files.All, f)
	default:
		im.ofDisks(files, f, disks)
	}
}

// berxLimits are the files of limits that the disks of a group share.
var berxLimits = map[string]struct {
	key  policy.Key
	unit string
}{
	"blkio.throttle.read_bps_device":   {policy.KeyIOReadBandwidth, "B/s"},
	"blkio.throttle.write_bps_device":  {policy.KeyIOWriteBandwidth, "B/s"},
	"blkio.throttle.read_iops_device":  {policy.KeyIOReadIOPS, ""},
	"blkio.throttle.write_iops_device": {policy.KeyIOWriteIOPS, ""},
}

func (im *berxImport) ofDisks(files *kernelfile.Params, f kernelfile.Param, disks string) {
	to, fine := berxLimits[f.File]
	n, err := strconv.ParseInt(f.Text, 10, 64)
	switch {
	case !fine:
		im.Leave(f.At, "write `weight`, 1 to 10000, beside the limits of the disk group below io", f.What(),
			"it is a weight on one disk, and the script names a disk group")
	case err != nil || n < 0:
		im.Fail(f.At, "write bytes, or operations, a second as a whole number", "%s: %q is not a limit", f.File,
			convert.Clean(f.Text))
	case n == 0: // no limit
	case disks == "":
		im.Fail(f.At, "add diskgroup to the group", "%s: the group names no disk group that it is for", f.File)
	default:
		if im.Set(files.G, to.key, disks, strconv.FormatInt(n, 10)+to.unit, f.At, f.What()) {
			files.G.ShareEvenly() // as the script divides it
		}
	}
}

// matchesAll says whether a pattern says nothing about a process, as a policy's parser finds out.
func matchesAll(pattern string) bool {
	re := regexp.MustCompile(pattern)
	for _, one := range []string{"a", "0", "/", "-", "ß", "_"} {
		if !re.MatchString(one) {
			return false
		}
	}
	return true
}

// process reads a pattern over the command line.
func (im *berxImport) process(g *convert.Group, v jsonValue) {
	pattern := im.text(v, "a pattern of processes")
	at := im.in.At(v.offset)
	if pattern == "" {
		if _, text := v.value.(string); text {
			im.Leave(at, "take it out, or say what the command line holds", `processes ""`,
				"an empty pattern is in every command line, and would match every process")
		}
		return
	}
	if _, err := regexp.Compile(pattern); err != nil {
		im.in.Bad(v.offset, "the syntax is RE2's: https://github.com/google/re2/wiki/Syntax", "%s",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		return
	}
	text := convert.MatchFlow(policy.Match{Cmdline: pattern})
	if strings.TrimSpace(pattern) == "" || matchesAll(pattern) {
		im.in.Bad(v.offset, "say what the command line holds", "%q would match every process", convert.Clean(pattern))
		return
	}
	g.Match = append(g.Match, convert.Raw{Key: "match", Text: text, From: convert.From(at, "")})
}
