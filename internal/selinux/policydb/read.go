package policydb

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errShort is a policy that ends too early.
var errShort = errors.New("the policy ends in the middle")

// cursor reads little-endian numbers one after the other. After an error it gives zeros.
type cursor struct {
	data []byte
	err  error
}

func (c *cursor) take(n int) []byte {
	if c.err == nil && (n < 0 || n > len(c.data)) {
		c.err = errShort
	}
	if c.err != nil {
		return nil
	}
	taken := c.data[:n]
	c.data = c.data[n:]
	return taken
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) text(n uint32) string { return string(c.take(int(n))) }

// skip32 leaves out numbers.
func (c *cursor) skip32(n int) { c.take(4 * n) }

// count is a number of things that each take at least size bytes: a damaged one makes nobody count to four thousand
// million.
func (c *cursor) count(size int) int {
	n := int(c.u32())
	if c.err == nil && n > len(c.data)/size {
		c.err = errShort
	}
	if c.err != nil {
		return 0
	}
	return n
}

// most is the highest number that a bit stands for: types are the most, some ten thousands.
const most = 1 << 20

// bits reads a set of numbers, from 0.
func (c *cursor) bits() []uint32 {
	unit, high := c.u32(), c.u32()
	n := c.count(12)
	if c.err == nil && (unit != 64 && (unit != 0 || n > 0) || high > most) {
		c.err = fmt.Errorf("a set of bits that is none: unit %d, highest %d", unit, high)
	}
	var found []uint32
	for range n {
		start, word := c.u32(), c.u64()
		for bit := range uint32(64) {
			if word&(1<<bit) != 0 && c.err == nil && start < high {
				found = append(found, start+bit)
			}
		}
	}
	return found
}

// mls leaves out a range of levels.
func (c *cursor) mls() {
	levels := c.u32()
	c.skip32(int(min(levels, 2)))
	c.bits()
	if levels > 1 {
		c.bits()
	}
}

// context reads a context and gives its type.
func (c *cursor) context() uint32 {
	c.skip32(2) // user, role
	kind := c.u32()
	c.mls()
	return kind
}
