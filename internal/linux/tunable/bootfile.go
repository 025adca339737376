package tunable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/change"
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
	case strings.HasPrefix(value, asLeft):
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

const heading = "# Written by bulkhead, which takes it away again (bulkhead tune rollback). Write your own settings " +
	"into\n# a file of a later name. Sum of what follows: "

// Edited is added to the name of a file that somebody edited.
const Edited = ".edited"

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
	if lines, ours := parse(file, string(text)); ours {
		return lines, nil
	}
	return asLeft + string(text), nil
}

// asLeft begins the value of a file that is not as bulkhead wrote it: the rest is its text.
const asLeft = "# not as bulkhead wrote it:\n"

// Write writes the file whole, or takes it away ("").
func (b BootFiles) Write(_ context.Context, file, value string) error {
	if file != SysctlFile && file != AttributeFile && file != QueueFile {
		return fmt.Errorf("%s is no file of bulkhead's", file)
	}
	if b.Dir == "" {
		return errCaptured
	}
	at := filepath.Join(b.Dir, file)
	text, err := os.ReadFile(at)
	switch {
	case errors.Is(err, fs.ErrNotExist) && value == "":
		return nil
	case err == nil:
		if _, ours := parse(file, string(text)); ours {
			break
		}
		if err := os.Rename(at, at+Edited); err != nil {
			return fmt.Errorf("keep what somebody edited: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return failed("read", file, err)
	}
	if value == "" {
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed("remove", file, err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil { //nolint:gosec // as distributions have it
		return failed("make the directory of", file, err)
	}
	if _, err := atomicfile.Write(atomicfile.OS{}, at, []byte(compose(file, value)), 0o644); err != nil {
		return failed("write", file, err)
	}
	return nil
}

// compose is the text of a file.
func compose(file, value string) string {
	if text, foreign := strings.CutPrefix(value, asLeft); foreign {
		return text
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
	return heading + sum(body.String()) + "\n" + body.String()
}

func sum(body string) string {
	s := sha256.Sum256([]byte(body))
	return hex.EncodeToString(s[:8])
}

// parse is the inverse of compose; it says no for what compose did not write.
func parse(file, text string) (value string, ours bool) {
	rest, ok := strings.CutPrefix(text, heading)
	said, body, ok2 := strings.Cut(rest, "\n")
	if !ok || !ok2 || said != sum(body) {
		return "", false
	}
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
	return strings.Join(lines, "\n"), true
}

// Same compares texts.
func (BootFiles) Same(_, want, got string) bool { return want == got }

// Undo gives the file its old text back, or takes it away.
func (b BootFiles) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, b, c)
}

// AfterBoot is the change: the file is still there.
func (BootFiles) AfterBoot(c change.Change) change.Change { return c }
