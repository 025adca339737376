package apparmor

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// Denial is one kind of access that a profile does not give, with how often a log has it.
type Denial struct {
	Profile   string `json:"profile"`
	Operation string `json:"operation"` // "open", "mknod", "capable" and so on
	Name      string `json:"name"`      // a path, for accesses of files
	Denied    string `json:"denied"`    // the rights: "r", "wc"
	Comm      string `json:"comm"`
	Count     int    `json:"count"`
	// Allowed says that the profile only complains: it was allowed all the same.
	Allowed bool `json:"allowed"`
}

// longest is how much of a line is read, most how many kinds of denials are kept.
const longest, most = 16 << 10, 1000

// ReadDenials reads denials of AppArmor from a log of auditd or of the kernel, by kind, in the order of the log. Of
// more than a thousand kinds the rest is left out, and cut is true.
func ReadDenials(r io.Reader) (all []Denial, cut bool, err error) {
	at := map[Denial]int{}
	lines := bufio.NewReaderSize(r, longest)
	for {
		line, err := lines.ReadSlice('\n')
		if d, is := parseDenial(string(line)); is {
			i, known := at[d]
			switch {
			case known:
				all[i].Count++
			case len(all) < most:
				at[d] = len(all)
				d.Count = 1
				all = append(all, d)
			default:
				cut = true
			}
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = lines.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			return all, cut, nil
		}
		if err != nil {
			return all, cut, err
		}
	}
}

// parseDenial reads a record as audit_pre of security/apparmor/audit.c writes it; is false for any other line.
func parseDenial(line string) (d Denial, is bool) {
	at := strings.Index(line, `apparmor="`)
	if at < 0 {
		return d, false
	}
	fields := map[string]string{}
	rest := strings.TrimRight(line[at:], "\r\n")
	for rest != "" {
		var key, value string
		key, rest, _ = strings.Cut(rest, "=")
		if quoted, has := strings.CutPrefix(rest, `"`); has {
			value, rest, _ = strings.Cut(quoted, `"`)
		} else {
			end := strings.IndexAny(rest, " \x1d")
			if end < 0 {
				end = len(rest)
			}
			value, rest = unhex(rest[:end]), rest[end:]
		}
		rest = strings.TrimLeft(rest, " \x1d")
		if _, there := fields[key]; !there {
			fields[key] = value
		}
	}
	state := fields["apparmor"]
	if state != "DENIED" && state != "ALLOWED" || fields["profile"] == "" {
		return d, false
	}
	denied := fields["denied_mask"]
	if fields["operation"] == "capable" {
		denied = fields["capname"]
	}
	return Denial{Profile: fields["profile"], Operation: fields["operation"], Name: fields["name"], Denied: denied,
		Comm: fields["comm"], Allowed: state == "ALLOWED"}, true
}

// unhex is the text behind the hexadecimal digits that the kernel writes for names with blanks or quotes.
func unhex(text string) string {
	if len(text) < 4 { // a number
		return text
	}
	if b, err := hex.DecodeString(text); err == nil && bytes.ContainsAny(b, "/ \"") {
		return string(b)
	}
	return text
}

// KernelLog is what the kernel's ring buffer has (syslog(2)). It takes CAP_SYSLOG, where kernel.dmesg_restrict is 1.
func KernelLog() ([]byte, error) {
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil {
		return nil, fmt.Errorf("read the log of the kernel: %w", err)
	}
	buf := make([]byte, size)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buf)
	if err != nil {
		return nil, fmt.Errorf("read the log of the kernel: %w", err)
	}
	return buf[:n], nil
}
