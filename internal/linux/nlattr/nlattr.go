// Package nlattr reads lists of netlink attributes (struct nlattr of include/uapi/linux/netlink.h): a header of
// length and type in the host's byte order, a value, and padding to four bytes. What it gives lies in the slice that
// it was given.
package nlattr

import (
	"encoding/binary"
	"iter"
)

const (
	header   = 4
	align    = 4
	typeMask = 0x3fff // NLA_TYPE_MASK: the two upper bits say "nested" and "in network byte order"
)

// All yields type and value of each attribute, up to the first whose length makes no sense. (The reader of
// vishvananda/netlink panics on a last attribute without padding.)
func All(data []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(data) >= header {
			length := int(binary.NativeEndian.Uint16(data))
			if length < header || length > len(data) {
				return
			}
			kind := int(binary.NativeEndian.Uint16(data[2:]) & typeMask)
			if !yield(kind, data[header:length:length]) {
				return
			}
			data = data[min((length+align-1)/align*align, len(data)):]
		}
	}
}

// Find gives the value of the first attribute of a type.
func Find(data []byte, kind int) ([]byte, bool) {
	for k, value := range All(data) {
		if k == kind {
			return value, true
		}
	}
	return nil, false
}

// Uint32 gives the first four bytes of the first attribute of a type, as a number in the host's byte order.
func Uint32(data []byte, kind int) (uint32, bool) {
	value, ok := Find(data, kind)
	if !ok || len(value) < 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(value), true
}

// Uint64 is Uint32 for eight bytes.
func Uint64(data []byte, kind int) (uint64, bool) {
	value, ok := Find(data, kind)
	if !ok || len(value) < 8 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(value), true
}
