package statedir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
)

// castagnoli is CRC-32C, the checksum of iSCSI, ext4 and btrfs.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SumLen is the length of a checksum in hex.
const SumLen = 8

// Line is a record as it stands in a log: checksum, space, JSON, newline.
func Line(v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(payload, castagnoli), payload), nil
}

// Fault is a stretch of a log that is not a sound record.
type Fault struct {
	offset, Length int64
	reason         string
}

// Scan hands the JSON of every sound record to use, in order, and returns what lies between them.
// An error of use (JSON that does not decode) makes that record a fault. It never panics, whatever
// the bytes are.
func Scan(data []byte, use func(payload []byte) error) []Fault {
	var faults []Fault
	for offset := 0; offset < len(data); {
		text, _, whole := bytes.Cut(data[offset:], []byte{'\n'})
		length := len(text)
		if whole {
			length++
		}
		reason := ""
		if payload, err := unwrap(text); !whole {
			reason = "incomplete record"
		} else if err != nil {
			reason = err.Error()
		} else if err := use(payload); err != nil {
			reason = err.Error()
		}
		if reason != "" {
			faults = append(faults, Fault{int64(offset), int64(length), reason})
		}
		offset += length
	}
	return faults
}

// unwrap checks one line, without its newline, and gives its JSON.
func unwrap(text []byte) ([]byte, error) {
	if len(text) < SumLen+1 || text[SumLen] != ' ' {
		return nil, fmt.Errorf("not a record")
	}
	want, err := strconv.ParseUint(string(text[:SumLen]), 16, 32)
	if err != nil {
		return nil, fmt.Errorf("not a record")
	}
	payload := text[SumLen+1:]
	if got := crc32.Checksum(payload, castagnoli); got != uint32(want) {
		return nil, fmt.Errorf("checksum %08x, should be %08x", got, want)
	}
	return payload, nil
}

// Without gives data with the faults cut out.
func Without(data []byte, faults []Fault) []byte {
	var sound []byte
	at := int64(0)
	for _, f := range faults {
		sound = append(sound, data[at:f.offset]...)
		at = f.offset + f.Length
	}
	return append(sound, data[at:]...)
}

// Checksum is the CRC-32C of data in hex.
func Checksum(data []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli))
}
