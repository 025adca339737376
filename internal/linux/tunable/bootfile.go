package tunable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable/ownfile"
)

// KindBootFile is a file of bulkhead's own that sets settings at boot; its address is the path, one of SysctlFile,
// AttributeFile and QueueFile, and its value the settings, "vm.swappiness = 1" on a line each; "" is no file.
const KindBootFile change.Kind = "boot file"

// The files. What comes later by name wins in all of the directories, so that an administrator's file of 99 does, and
// so that the rules of udev come after those of distributions and clouds (60-block-scheduler.rules, 64-...).
const (
	SysctlFile    = "/etc/sysctl.d/60-bulkhead.conf"
	AttributeFile = "/etc/tmpfiles.d/bulkhead.conf"
	QueueFile     = "/etc/udev/rules.d/90-bulkhead.rules"
)

// BootFile is the file that sets a setting of a kind at boot; there is none for a disk that says nothing of itself.
func BootFile(kind change.Kind) (file change.Target, exists bool) {
	at, exists := map[change.Kind]string{KindSysctl: SysctlFile, KindAttribute: AttributeFile,
		KindQueue: QueueFile}[kind]
	return change.Target{Kind: KindBootFile, Addr: at}, exists
}

// Lines is the value of a boot file: each setting by the address of its target with its value, in order of address.
func Lines(settings map[string]string) string {
	var lines []string
	for addr, value := range settings {
		lines = append(lines, addr+" = "+value)
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(lineKey(a), lineKey(b)) })
	return strings.Join(lines, "\n")
}

// lineKey is the order of a line.
func lineKey(line string) string {
	addr, value, _ := strings.Cut(line, " = ")
	return OrderKey(addr) + " = " + value
}

// Human is a value of a boot file for people: how many settings it has.
func Human(value string) string {
	switch n := strings.Count(value, "\n") + 1; {
	case value == "":
		return "no file"
	case strings.HasPrefix(value, ownfile.AsLeft):
		return "edited by somebody"
	case n == 1:
		return "1 setting"
	default:
		return fmt.Sprintf("%d settings", n)
	}
}

// BootFiles is the actuator of KindBootFile. A file that somebody edited since it was written is kept beside the new
// one, under its name with ".edited" added, which neither sysctl(8) nor systemd-tmpfiles(8) reads.
type BootFiles struct{ Host }

// Read gives the settings of the file; of one that somebody edited, or that is not bulkhead's, a line that says so and
// the text.
func (b BootFiles) Read(_ context.Context, file string) (string, error) {
	text, err := b.Root.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", failed("read", file, err)
	}
	if body, ours := ownfile.Body(string(text)); ours {
		return parse(file, body), nil
	}
	return ownfile.Foreign(string(text)), nil
}

// Write writes the file whole, or takes it away ("").
func (b BootFiles) Write(_ context.Context, file, value string) error {
	if file != SysctlFile && file != AttributeFile && file != QueueFile {
		return fmt.Errorf("%s is no file of bulkhead's", file)
	}
	if b.Dir == "" {
		return change.ErrCaptured
	}
	if err := ownfile.Write(filepath.Join(b.Dir, file), compose(file, value), false); err != nil {
		return failed("write", file, err)
	}
	return nil
}

// compose is the body of a file.
func compose(file, value string) string {
	if strings.HasPrefix(value, ownfile.AsLeft) {
		return value
	}
	var body strings.Builder
	for line := range strings.Lines(value) {
		line = strings.TrimSpace(line)
		addr, v, _ := strings.Cut(line, " = ")
		switch file {
		case QueueFile:
			line = udevRule(addr, v)
		case AttributeFile:
			line = "w " + addr + " - - - - " + strings.ReplaceAll(v, "%", "%%")
		}
		body.WriteString(line + "\n")
	}
	return body.String()
}

// parse is the inverse of compose.
func parse(file, body string) (value string) {
	var lines []string
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		switch file {
		case QueueFile:
			line = ofUdevRule(line)
		case AttributeFile:
			addr, v, _ := strings.Cut(strings.TrimPrefix(line, "w "), " - - - - ")
			line = addr + " = " + strings.ReplaceAll(v, "%%", "%")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// Same compares texts.
func (BootFiles) Same(_, want, got string) bool { return want == got }

// Undo gives the file its old text back, or takes it away, with what somebody who was killed left beside it.
func (b BootFiles) Undo(ctx context.Context, c change.Change) (bool, error) {
	undone, err := change.Restore(ctx, b, c)
	if err == nil && b.Dir != "" {
		err = ownfile.Tidy(filepath.Join(b.Dir, c.Addr), false)
	}
	return undone, err
}

// AfterBoot is the change: the file is still there.
func (BootFiles) AfterBoot(c change.Change) change.Change { return c }
