// Package kstrto reads numbers as the kernel's parsers do, with their quirks: a leading 0 means octal, 0x hexadecimal.
// All of it is safe for concurrent use.
package kstrto

import (
	"math"
	"strings"
	"syscall"
)

// Unsigned is kstrtoull(text, 0): no blanks, one line break at the end.
func Unsigned(text string) (uint64, error) {
	text = strings.TrimSuffix(text, "\n")
	text = strings.TrimPrefix(text, "+")
	n, rest, overflow := Digits(text)
	switch {
	case rest == text || rest != "":
		return 0, syscall.EINVAL
	case overflow:
		return 0, syscall.ERANGE
	}
	return n, nil
}

// Signed is kstrtoll(text, 0).
func Signed(text string) (int64, error) {
	positive, negative := strings.CutPrefix(text, "-")
	if negative && strings.HasPrefix(positive, "+") {
		return 0, syscall.EINVAL
	}
	n, err := Unsigned(positive)
	switch {
	case err != nil:
		return 0, err
	case negative && n <= 1<<63:
		return -int64(n), nil
	case negative || n > math.MaxInt64:
		return 0, syscall.ERANGE
	}
	return int64(n), nil
}

// Digits takes a number from the front of text (simple_strtoull with base 0); it wraps when too large.
func Digits(text string) (n uint64, rest string, overflow bool) {
	base := uint64(10)
	switch {
	case len(text) > 2 && text[0] == '0' && text[1]|0x20 == 'x' && digit(text[2]) < 16:
		base, text = 16, text[2:]
	case strings.HasPrefix(text, "0"):
		base = 8
	}
	for len(text) > 0 && digit(text[0]) < base {
		d := digit(text[0])
		if n > (math.MaxUint64-d)/base {
			overflow = true
		}
		n = n*base + d
		text = text[1:]
	}
	return n, text, overflow
}

// digit gives a digit's value, 99 for what is none.
func digit(c byte) uint64 {
	switch {
	case c >= '0' && c <= '9':
		return uint64(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return uint64(c|0x20-'a') + 10
	}
	return 99
}

// NoLimit is PAGE_COUNTER_MAX in bytes for 4 KiB pages, what v1 prints for "no limit".
const NoLimit int64 = math.MaxInt64

// Memory is page_counter_memparse: bytes with an optional suffix K to E, rounded down to pages,
// or the word for "no limit". An empty value is 0, and too many Digits wrap around.
func Memory(text, unlimited string, page int64) (int64, error) {
	text = strings.TrimSpace(text)
	most := NoLimit / page * page
	if text == unlimited {
		return most, nil
	}
	n, rest, _ := Digits(text)
	if i := strings.Index("kmgtpe", strings.ToLower(rest[:min(len(rest), 1)])); i >= 0 && rest != "" {
		n <<= 10 * (i + 1)
		rest = rest[1:]
	}
	if rest != "" {
		return 0, syscall.EINVAL
	}
	return int64(min(n/uint64(page), uint64(most/page))) * page, nil
}
