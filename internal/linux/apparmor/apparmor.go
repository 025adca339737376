// Package apparmor reads what a host tells of AppArmor: whether the kernel has it, the profile that confines a process
// (proc(5), attr/current), what the loaded profile allows of a path (the query interface of securityfs that
// aa_query_file_path(3) of libapparmor uses) and denials in logs. It changes nothing. A Host may be used at once by
// many.
package apparmor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/sysroot"
)

const enabled, query = "/sys/module/apparmor/parameters/enabled", "/sys/kernel/security/apparmor/.access"

// Host is a host.
type Host struct{ Root *sysroot.FS }

// Enabled says whether the kernel confines processes by AppArmor.
func (h Host) Enabled() (bool, error) {
	text, err := h.Root.ReadOptional(enabled)
	return text == "Y", err
}

// Confinement is what confines a process.
type Confinement struct {
	// Profile is its name; "" is none.
	Profile string `json:"profile"`
	// Mode is "enforce", "complain" (denials are only logged), "kill", "unconfined" or "mixed".
	Mode string `json:"mode"`
}

// Of is what confines a process. The error matches fs.ErrNotExist when the process has ended.
func (h Host) Of(pid int) (Confinement, error) {
	dir := fmt.Sprintf("/proc/%d/attr/", pid)
	text, err := h.Root.ReadText(dir + "apparmor/current")
	if errors.Is(err, fs.ErrNotExist) { // before 5.8 there is one file for all
		text, err = h.Root.ReadText(dir + "current")
	}
	if err != nil {
		return Confinement{}, err
	}
	return parseConfinement(text), nil
}

// parseConfinement reads "unconfined" or "/usr/sbin/mysqld (enforce)". A name may have blanks.
func parseConfinement(text string) Confinement {
	text = strings.TrimRight(text, "\x00\n ")
	if at := strings.LastIndex(text, " ("); at >= 0 && strings.HasSuffix(text, ")") {
		return Confinement{Profile: text[:at], Mode: strings.TrimSuffix(text[at+2:], ")")}
	}
	if text == "unconfined" || text == "" {
		return Confinement{Mode: "unconfined"}
	}
	return Confinement{Profile: text, Mode: "enforce"}
}

// Right is one that a rule of a profile gives.
type Right string

// Rights, as rules have them.
const (
	Read    Right = "r"
	Write   Right = "w"
	Execute Right = "x"
	Map     Right = "m" // as executable memory
	Lock    Right = "k"
)

// bits are those of the answer (AA_MAY_… of security/apparmor/include/perms.h).
var bits = map[Right]uint32{Execute: 1 << 0, Write: 1 << 1, Read: 1 << 2, Lock: 1 << 15, Map: 1 << 16}

// ErrNotAsked says that the loaded profiles cannot be asked on this host.
var ErrNotAsked = errors.New("the loaded profiles cannot be asked")

// Missing are the rights on a path, without links, that the loaded profile does not give, of those that are wanted.
// Rules for the owner of a file count as if the caller were the owner. Only root may ask.
func (h Host) Missing(profile, path string, wanted ...Right) (missing []Right, err error) {
	if !h.Root.Live() {
		return nil, fmt.Errorf("%w: the host is captured", ErrNotAsked)
	}
	f, err := os.OpenFile(query, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAsked, err)
	}
	defer f.Close()
	if _, err := f.WriteString(question(profile, path)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAsked, err)
	}
	buf := make([]byte, 4096)
	n, err := f.Read(buf)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAsked, err)
	}
	allowed, err := allowedIn(string(buf[:n]))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(r Right) bool { return allowed&bits[r] != 0 }), nil
}

// classFile is AA_CLASS_FILE.
const classFile = "\x02"

// question is the text that query_label of security/apparmor/apparmorfs.c takes.
func question(profile, path string) string { return "label\x00" + profile + "\x00" + classFile + path }

// allowedIn reads "allow 0x00000006" of the answer, less what is denied in it.
func allowedIn(answer string) (allowed uint32, err error) {
	found := false
	var denied uint32
	for line := range strings.Lines(answer) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(strings.TrimPrefix(value, "0x"), 16, 32)
		if err != nil {
			continue
		}
		switch name {
		case "allow":
			allowed, found = uint32(n), true
		case "deny":
			denied = uint32(n)
		}
	}
	if !found {
		return 0, fmt.Errorf("%w: the kernel answered %q", ErrNotAsked, answer)
	}
	return allowed &^ denied, nil
}
