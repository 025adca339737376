package tunable

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
)

// Kinds of settings of a disk: files below /sys/block/DISK/queue. The address is the disk and the name of the file.
const (
	// KindQueue has the disk by what it says of itself, "wwid:naa.5000c500/scheduler", whichever name it has.
	KindQueue change.Kind = "disk setting"
	// KindQueueByName has it by the name that it has in this boot, "vda/scheduler": it says nothing of itself.
	KindQueueByName change.Kind = "disk setting by name"
)

// diskPrefix begins the name of a setting of a disk: "disk vda/scheduler".
const diskPrefix = "disk "

// queueFile is a file, what it takes, and that in words.
type queueFile struct {
	name   string
	values *regexp.Regexp
	want   string
}

// queueFiles are the files that are set, with the values they take, in the order in which they are written: the kernel
// sets nr_requests and wbt_lat_usec anew with the scheduler.
var queueFiles = []queueFile{
	{fileScheduler, regexp.MustCompile(`^[a-z][a-z0-9-]*$`), "a scheduler: none, mq-deadline, bfq or kyber"},
	{"rotational", regexp.MustCompile(`^[01]$`), "0 or 1"},
	{"write_cache", regexp.MustCompile(`^write back$`), `"write back"; without flushes a power failure takes data`},
	{fileWriteBack, regexp.MustCompile(`^\d{1,9}$`), "a number of microseconds; 0 is off"},
	{fileRequests, regexp.MustCompile(`^\d{1,6}$`), "a number of requests"},
	{"read_ahead_kb", regexp.MustCompile(`^\d{1,9}$`), "a number of KiB"},
	{"max_sectors_kb", regexp.MustCompile(`^\d{1,9}$`), "a number of KiB"},
	{"nomerges", regexp.MustCompile(`^[012]$`), "0, 1 or 2"},
	{"rq_affinity", regexp.MustCompile(`^[012]$`), "0, 1 or 2"},
}

const (
	fileScheduler = "scheduler"
	fileRequests  = "nr_requests"
	fileWriteBack = "wbt_lat_usec"
)

// dependent are the files that the kernel sets anew with the scheduler.
var dependent = []string{fileWriteBack, fileRequests}

// identities are what a disk says of itself: the file below /sys/block/DISK, and how a rule of udev matches it. It is
// what sysfs has, so that the place of the rule among others does not matter. ATTRS is the disk or what it is part of.
var identities = []struct{ kind, file, match string }{
	{"dm", "dm/uuid", "ATTR{dm/uuid}"},
	{"md", "md/uuid", "ATTR{md/uuid}"},
	{"wwid", "wwid", "ATTRS{wwid}"}, // NVMe
	{"wwid", "device/wwid", "ATTRS{wwid}"},
	{"serial", "serial", "ATTRS{serial}"}, // virtio
	{"serial", "device/serial", "ATTRS{serial}"},
}

// plainIdentity is one that a rule of udev can match as it is: without patterns and quotes.
var plainIdentity = regexp.MustCompile(`^[A-Za-z0-9_.:,+=@#~/ -]+$`)

var (
	diskName = regexp.MustCompile(`^[A-Za-z0-9_.!-]+$`)
	diskPath = regexp.MustCompile(`^(/[A-Za-z0-9_.:,+=@#~-]+)+$`)
	diskID   = regexp.MustCompile(`^(dm|md|wwid|serial):(.+)$`)
	pathOf   = regexp.MustCompile(`^nvme\d+c\d+n\d+$`) // of a disk with several paths, which has its number, too
)

// splitQueue takes a setting of a disk apart, by its name without "disk ", or by its address.
func splitQueue(addr string) (disk, file string) {
	at := strings.LastIndex(addr, "/")
	if at < 0 {
		return addr, ""
	}
	return addr[:at], addr[at+1:]
}

// checkQueue says what is wrong with the name of a setting of a disk, without "disk ", and its value.
func checkQueue(name, value string) error {
	disk, file := splitQueue(name)
	i := slices.IndexFunc(queueFiles, func(f queueFile) bool { return f.name == file })
	m := diskID.FindStringSubmatch(disk)
	switch {
	case i < 0:
		var known []string
		for _, f := range queueFiles {
			known = append(known, f.name)
		}
		return fmt.Errorf("%q is not a setting of a disk: %s are", file, strings.Join(known, ", "))
	case m != nil && !plainIdentity.MatchString(m[2]),
		m == nil && !diskName.MatchString(disk) && !isDevice(disk):
		return fmt.Errorf("%q is not a disk: write its name (vda) or a path below /dev (/dev/disk/by-id/...)", disk)
	case !queueFiles[i].values.MatchString(value):
		return fmt.Errorf("%s of a disk takes no %q, but %s", file, value, queueFiles[i].want)
	}
	return nil
}

// isDevice says whether a text is a path below /dev.
func isDevice(text string) bool {
	return diskPath.MatchString(text) && path.Clean(text) == text && strings.HasPrefix(text, "/dev/")
}

// queueTarget is the target of a setting of a disk by its name without "disk ".
func queueTarget(addr string) change.Target {
	if diskID.MatchString(addr) {
		return change.Target{Kind: KindQueue, Addr: addr}
	}
	return change.Target{Kind: KindQueueByName, Addr: addr}
}

// IsDisk says whether a name is that of a setting of a disk.
func IsDisk(name string) bool { return strings.HasPrefix(name, diskPrefix) }

// QueueName is the name of a setting of a disk.
func QueueName(disk, file string) string { return diskPrefix + disk + "/" + file }

// OrderKey sorts names, or addresses, so that what the kernel sets anew with another setting comes after it.
func OrderKey(name string) string {
	disk, file := splitQueue(name)
	for i, f := range queueFiles {
		if f.name == file {
			return fmt.Sprintf("%s/%02d", disk, i)
		}
	}
	return name
}

// FollowsScheduler says whether the kernel sets a target anew when it gets another scheduler, and which target that is.
func FollowsScheduler(t change.Target) (scheduler change.Target, follows bool) {
	disk, file := splitQueue(t.Addr)
	return change.Target{Kind: t.Kind, Addr: disk + "/" + fileScheduler},
		(t.Kind == KindQueue || t.Kind == KindQueueByName) && slices.Contains(dependent, file)
}

// SuitsScheduler says whether a value that was read means something under a scheduler.
func SuitsScheduler(value, scheduler string) bool {
	_, under, bound := strings.Cut(value, besideSeparator+fileScheduler+"=")
	return !bound || under == scheduler
}

// Find gives the setting of a disk with the name that the disk keeps over a boot, where it has one, and the name that
// the kernel has for the disk now. Other names, and disks that are not there, stay as they are, without a disk.
func (h Host) Find(name string) (lasting, disk string) {
	if !IsDisk(name) {
		return name, ""
	}
	spec, file := splitQueue(strings.TrimPrefix(name, diskPrefix))
	q := Queues{Host: h}
	if diskID.MatchString(spec) {
		disk, _ = q.disk(spec) // one that is not there has no name
		return name, disk
	}
	if strings.HasPrefix(spec, "/") {
		real, err := h.Root.EvalSymlinks(spec)
		if err != nil {
			return name, ""
		}
		spec = strings.ReplaceAll(strings.TrimPrefix(real, "/dev/"), "/", "!")
	}
	if !h.Root.Exists(path.Join("/sys/block", spec)) {
		return name, ""
	}
	for id, names := range q.identities() {
		if slices.Equal(names, []string{spec}) {
			return QueueName(id, file), spec
		}
	}
	return QueueName(spec, file), spec
}

// Queues is the actuator of the kinds of settings of disks. Where the kernel sets others anew with a setting, these
// follow its value: "mq-deadline; wbt_lat_usec=75000; nr_requests=256" is what a scheduler was, and "256;
// scheduler=mq-deadline" a number of requests, which means nothing under another scheduler.
type Queues struct {
	Host
	known map[string][]string
}

// QueuesOfDisks is the actuator of KindQueue, whose changes outlive a boot.
type QueuesOfDisks struct{ *Queues }

// AfterBoot is the change: the rule that came with it may have set the value again.
func (QueuesOfDisks) AfterBoot(c change.Change) change.Change { return c }

// identities are the names of disks by what they say of themselves.
func (q *Queues) identities() map[string][]string {
	if q.known != nil {
		return q.known
	}
	q.known = map[string][]string{}
	names, _ := q.Root.ReadDir("/sys/block") // none without
	for _, name := range names {
		if pathOf.MatchString(name) {
			continue
		}
		for _, id := range identities {
			text, err := q.Root.ReadText(path.Join("/sys/block", name, id.file))
			if err == nil && plainIdentity.MatchString(text) {
				key := id.kind + ":" + text
				q.known[key] = append(q.known[key], name)
				break
			}
		}
	}
	return q.known
}

// disk is the name of a disk by a name or by what it says of itself.
func (q *Queues) disk(spec string) (string, error) {
	if !diskID.MatchString(spec) {
		return spec, nil
	}
	switch names := q.identities()[spec]; len(names) {
	case 0:
		q.known = nil // it may come
		return "", change.Gone("no such disk")
	case 1:
		return names[0], nil
	default:
		return "", fmt.Errorf("%s all say that they are %s", strings.Join(names, ", "), spec)
	}
}

// file is the path of a setting by its address.
func (q *Queues) file(addr string) (file, name string, err error) {
	spec, name := splitQueue(addr)
	disk, err := q.disk(spec)
	switch {
	case err != nil:
		return "", "", fmt.Errorf("find the disk %s: %w", spec, err)
	case !diskName.MatchString(disk):
		return "", "", fmt.Errorf("find the disk %s: %w", spec, change.Gone("no such disk"))
	}
	return path.Join("/sys/block", disk, "queue", name), name, nil
}

// beside are the files whose values follow that of a file.
func beside(name string) []string {
	switch name {
	case fileScheduler:
		return dependent
	case fileRequests:
		return []string{fileScheduler}
	}
	return nil
}

// Read gives the value, with what follows it.
func (q *Queues) Read(_ context.Context, addr string) (string, error) {
	file, name, err := q.file(addr)
	if err != nil {
		return "", err
	}
	text, err := q.Root.ReadText(file)
	if err != nil {
		return "", failed("read", file, err)
	}
	value := chosen(text)
	for _, other := range beside(name) {
		text, err := q.Root.ReadText(path.Join(path.Dir(file), other))
		if err == nil { // wbt_lat_usec cannot be read where nothing throttles
			value += besideSeparator + other + "=" + chosen(text)
		}
	}
	return value, nil
}

const besideSeparator = "; "

// Write writes the value and what follows it, but for a scheduler.
func (q *Queues) Write(_ context.Context, addr, value string) error {
	file, setting, err := q.file(addr)
	if err != nil {
		return err
	}
	if q.Dir == "" {
		return change.ErrCaptured
	}
	parts := strings.Split(value, besideSeparator)
	err = q.write(file, parts[0])
	if setting == fileScheduler && errors.Is(err, unix.EINVAL) {
		if text, _ := q.Root.ReadText(file); text != "" {
			offered := strings.NewReplacer("[", "", "]", "", " ", ", ").Replace(text)
			err = fmt.Errorf("%w: the kernel offers %s for this disk", err, offered)
		}
	}
	if err != nil {
		return err
	}
	for _, part := range parts[1:] {
		name, v, _ := strings.Cut(part, "=")
		other := path.Join(path.Dir(file), name)
		if text, err := q.Root.ReadText(other); name == fileScheduler || err == nil && chosen(text) == v {
			continue
		}
		if err := q.write(other, v); err != nil {
			return err
		}
	}
	return nil
}

// Same compares the value without what follows it. A number of requests that was read under another scheduler is the
// same as any: it comes back with that scheduler.
func (*Queues) Same(_, want, got string) bool { return sameQueue(want, got) }

func sameQueue(want, got string) bool {
	_, now, _ := strings.Cut(got, besideSeparator+fileScheduler+"=")
	return !SuitsScheduler(want, now) || HumanValue(want) == HumanValue(got)
}

// Undo gives the value back, with what followed it, which is compared, too.
func (q *Queues) Undo(ctx context.Context, c change.Change) (bool, error) {
	got, err := q.Read(ctx, c.Addr)
	if _, file := splitQueue(c.Addr); err != nil || file != fileScheduler || got == c.Undo {
		return change.Restore(ctx, q, c)
	}
	return true, change.Set(ctx, q, c.Target, c.Undo)
}

// HumanValue is a value of a target for people: without what follows it.
func HumanValue(value string) string {
	value, _, _ = strings.Cut(value, besideSeparator)
	return value
}

// udevRule is a line of the file of rules for a setting, "" for what none can set.
func udevRule(addr, value string) string {
	spec, file := splitQueue(addr)
	m := diskID.FindStringSubmatch(spec)
	if m == nil {
		return ""
	}
	for _, id := range identities {
		if id.kind == m[1] {
			return fmt.Sprintf(`ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", %s=="%s", `+
				`ATTR{queue/%s}="%s"`, id.match, m[2], file, value)
		}
	}
	return ""
}

var ourRule = regexp.MustCompile(`, (ATTRS?\{[a-z/]+\})=="([^"]*)", ATTR\{queue/([a-z_]+)\}="([^"]*)"$`)

// ofUdevRule is the inverse: address and value.
func ofUdevRule(line string) string {
	m := ourRule.FindStringSubmatch(line)
	if m == nil {
		return line
	}
	for _, id := range identities {
		if id.match == m[1] {
			return id.kind + ":" + m[2] + "/" + m[3] + " = " + m[4]
		}
	}
	return line
}
