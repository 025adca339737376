package gather

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
)

// listing is what somebody published of a host, and what a person wrote down for it before the rules were run.
type listing struct {
	Source, Date, About string

	Sysctl, Mount, Meminfo, Disks string            // as sysctl -a, mount(8), /proc/meminfo; lsblk of our own form
	Files                         map[string]string // all else
	Processes                     []listed

	Findings  []string          // "RULE", or "RULE OBJECT"; all that are above info
	Info      []string          // of those that are info, some that must be found
	Undecided []string          // what would be found, had the listing the fact
	Facts     map[string]string // "OBJECT FACT" or "FACT", as advise shows it
	Uncovered []string          // what a person would say and no rule does, with the reason
}

type listed struct {
	PID, UID  int
	Args      []string
	Exe, Dir  string
	Limits    string // a line of /proc/PID/limits each
	Cgroup    string
	NUMA      string // first line of numa_maps
	Container bool
}

// Hosts that somebody published get the findings that a person wrote down beforehand, and no others above info.
func TestPublishedHosts(t *testing.T) {
	rules, err := rule.Library()
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob("testdata/hosts/*.yaml")
	if err != nil || len(names) < 10 {
		t.Fatalf("%d listings: %v", len(names), err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".yaml"), func(t *testing.T) {
			t.Parallel()
			var l listing
			text, err := os.ReadFile(name)
			if err == nil {
				d := yaml.NewDecoder(strings.NewReader(string(text)))
				d.KnownFields(true)
				err = d.Decode(&l)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(l.Source, "https://") || len(l.Date) != len("2006-01-02") {
				t.Errorf("a listing needs its address and its date: %q, %q", l.Source, l.Date)
			}
			set := Facts(t.Context(), l.host(t), Options{})
			l.compare(t, set, advise.Run(rules, set, advise.Options{}))
		})
	}
}

func (l *listing) compare(t *testing.T, set *fact.Set, rep *advise.Report) {
	t.Helper()
	got := map[string]bool{}
	for _, f := range rep.Findings {
		name := strings.TrimSpace(f.Rule + " " + strings.Join(f.On, " "))
		got[name] = true
		if f.Severity != "info" && !slices.Contains(l.Findings, name) {
			t.Errorf("found, and nobody expected it: %s (%s): %s", name, f.Severity, f.Means)
		}
	}
	for _, name := range append(l.Findings, l.Info...) {
		if !got[name] {
			t.Errorf("not found: %s", name)
		}
	}
	for _, name := range l.Undecided {
		id, on, _ := strings.Cut(name, " ")
		if !slices.ContainsFunc(rep.Undecided, func(u advise.Undecided) bool {
			return u.Rule == id && (on == "" || slices.Contains(u.On, on))
		}) {
			t.Errorf("not undecided: %s", name)
		}
	}
	for _, n := range set.Notes {
		t.Errorf("note: %s", n)
	}
	objects := slices.Concat(set.Instances, set.Disks, set.Mounts)
	for name, want := range l.Facts {
		on, is, found := strings.Cut(name, " ")
		values := set.Host
		if found {
			i := slices.IndexFunc(objects, func(o fact.Object) bool { return o.Name == on })
			if i < 0 {
				t.Errorf("there is no %s", on)
				continue
			}
			values = objects[i].Values
		} else {
			is = on
		}
		row, _ := fact.Find(is)
		if v := values.Get(is); v.Unknown != "" || fact.Format(row, v.Is) != want {
			t.Errorf("%s is %+v, not %s", name, v, want)
		}
	}
}

// host makes a tree of what was listed. What every kernel has and nobody lists has no meaning here.
func (l *listing) host(t *testing.T) *host.Host {
	t.Helper()
	root := linuxtest.Unpack(t, "")
	for name, text := range map[string]string{
		"proc/sys/kernel/hostname": "host\n", "proc/1/comm": "systemd\n", "run/systemd/system/.keep": "",
		"proc/sys/kernel/random/boot_id": "6fd7e5ac-9b08-43e1-8aef-3fbb4ce2e1a4\n", "proc/cgroups": "",
		"sys/devices/system/cpu/online": "0-3\n", "proc/self/smaps": "1-2 r--p 0 0:0 0\nKernelPageSize:        4 kB\n",
		"proc/self/status": "Name:\tx\nPid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapEff:\t0\nNSpid:\t7\n",
	} {
		write(t, root, name, text)
	}
	link(t, root, "proc/self/ns/mnt", "mnt:[4026531841]")
	for line := range strings.Lines(l.Sysctl) {
		key, value, is := strings.Cut(strings.TrimSpace(line), " = ")
		if !is {
			t.Fatalf("%q is no line of sysctl -a", line)
		}
		write(t, root, "proc/sys/"+strings.ReplaceAll(key, ".", "/"), value+"\n")
	}
	write(t, root, "proc/meminfo", l.Meminfo)
	numbers := writeDisks(t, root, l.Disks)
	writeMounts(t, root, l.Mount, numbers)
	for _, p := range l.Processes {
		p.write(t, root)
	}
	for name, text := range l.Files {
		write(t, root, name, text)
	}
	return host.New(root)
}

// writeMounts writes mountinfo from lines as mount(8) prints them.
func writeMounts(t *testing.T, root, text string, numbers map[string]string) {
	t.Helper()
	var b strings.Builder
	id, top := 20, 1
	for line := range strings.Lines(text) {
		w := strings.Fields(line) // DEVICE on POINT type TYPE (OPTIONS)
		if len(w) != 6 || w[1] != "on" || w[3] != "type" {
			t.Fatalf("%q is no line of mount(8)", line)
		}
		id++
		number := numbers[strings.TrimPrefix(w[0], "/dev/")]
		if number == "" {
			number = "0:" + strconv.Itoa(id)
		}
		super := "rw"
		if strings.HasPrefix(w[4], "cgroup") { // its controllers are options of the file system
			super = strings.Trim(w[5], "()")
			if w[4] == "cgroup2" {
				write(t, root, w[2]+"/cgroup.controllers", "cpuset cpu io memory pids\n")
			}
		}
		fmt.Fprintf(&b, "%d %d %s / %s %s shared:%d - %s %s %s\n", id, top, number, w[2], strings.Trim(w[5], "()"), id,
			w[4], w[0], super)
		if w[2] == "/" { // it comes first
			top = id
		}
	}
	write(t, root, "proc/self/mountinfo", b.String())
}

// writeDisks writes block devices from lines "NAME KIND [of=NAME,…] [FILE=VALUE…]". It gives their numbers by the names
// under which they are mounted.
func writeDisks(t *testing.T, root, text string) map[string]string {
	t.Helper()
	numbers, dirs := map[string]string{}, map[string]string{}
	count := 0
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) < 2 {
			t.Fatalf("%q is no line of a disk", line)
		}
		name, kind := w[0], w[1]
		var below []string
		files := map[string]string{"size": "2097152000"}
		for _, one := range w[2:] {
			key, value, _ := strings.Cut(one, "=")
			value = strings.ReplaceAll(value, "_", " ")
			switch key {
			case "of":
				below = strings.Split(value, ",")
			case "mapped":
				numbers["mapper/"+value] = fmt.Sprint("8:", count)
				files["dm/name"], files["dm/uuid"], files["dm/suspended"] = value, "LVM-"+value, "0"
			default:
				files[key] = value
			}
		}
		dir := "sys/devices/virtual/block/" + name
		switch kind {
		case "disk":
			dir = "sys/devices/pci0000:00/" + name + "/block/" + name
			files["device/state"] = "running"
		case "part":
			dir = dirs[below[0]] + "/" + name
			files["partition"] = "1"
			below = nil
		case "lvm":
		default: // a level of RAID
			files["md/level"], files["md/array_state"], files["md/raid_disks"] = kind, "clean", strconv.Itoa(len(below))
		}
		numbers[name], dirs[name] = fmt.Sprint("8:", count), dir
		files["dev"] = numbers[name]
		for file, value := range files {
			write(t, root, dir+"/"+file, value+"\n")
		}
		for _, b := range below {
			up := strings.Repeat("../", strings.Count(dir, "/")+1)
			link(t, root, dir+"/slaves/"+b, up+dirs[b])
		}
		link(t, root, "sys/dev/block/"+numbers[name], "../../"+strings.TrimPrefix(dir, "sys/"))
		if kind != "part" {
			link(t, root, "sys/block/"+name, "../"+strings.TrimPrefix(dir, "sys/"))
		}
		count++
	}
	return numbers
}

func (p *listed) write(t *testing.T, root string) {
	t.Helper()
	dir := "proc/" + strconv.Itoa(p.PID)
	program := filepath.Base(p.Exe)
	write(t, root, dir+"/cmdline", strings.Join(p.Args, "\x00")+"\x00")
	write(t, root, dir+"/comm", program+"\n")
	write(t, root, dir+"/stat", fmt.Sprintf("%d (%s) S 1 %d %d 0 -1 4194560 1234 0 12 0 100 50 0 0 20 0 1 0 1812 1 1 1"+
		" 1 1 1 0 0 0 0 0 0 0 0 0 17 1 0 0 5 0 0 1 1 1 1 1 1 1 0\n", p.PID, program, p.PID, p.PID))
	ids := strings.Repeat("\t"+strconv.Itoa(p.UID), 4)
	write(t, root, dir+"/status", fmt.Sprintf("Name:\t%s\nState:\tS (sleeping)\nTgid:\t%d\nPid:\t%d\nPPid:\t1\n"+
		"Uid:%s\nGid:%s\nGroups:\t\nNSpid:\t%d\nVmRSS:\t102400 kB\nThreads:\t1\nCapEff:\t0\n", program, p.PID, p.PID,
		ids, ids, p.PID))
	link(t, root, dir+"/exe", p.Exe)
	link(t, root, dir+"/cwd", cmp.Or(p.Dir, "/"))
	link(t, root, dir+"/fd/0", "/dev/null")
	if p.Container {
		link(t, root, dir+"/ns/mnt", "mnt:[4026532999]")
		link(t, root, dir+"/root", "/containers/"+strconv.Itoa(p.PID))
	} else {
		link(t, root, dir+"/ns/mnt", "mnt:[4026531841]")
		link(t, root, dir+"/root", "/")
	}
	for name, text := range map[string]string{"limits": p.Limits, "cgroup": p.Cgroup, "numa_maps": p.NUMA} {
		if text != "" {
			write(t, root, dir+"/"+name, text+"\n")
		}
	}
}

func link(t *testing.T, root, name, target string) {
	t.Helper()
	file := filepath.Join(root, name)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.Symlink(target, file)
	}
	if err != nil {
		t.Fatal(err)
	}
}
