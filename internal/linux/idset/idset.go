// Package idset has sets of small numbers, CPUs or NUMA nodes, in the kernel's list format "0-3,8" (cpuset(7)). Sets
// are values: no function changes its operands.
package idset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxID is the largest member an IDSet takes. The kernel's own bound is CONFIG_NR_CPUS, at most
// 8192 today; the bound here keeps a typing error from making a set of millions.
const MaxID = 65535

// Set is a set of small non-negative numbers — CPUs or NUMA nodes — as a sorted slice without
// repeats. Its text form is the kernel's list format, "0-3,8" (cpuset(7)); the empty set is "".
type Set []int

// ListError is what is wrong with the text of an IDSet.
type ListError struct {
	Text    string
	Offset  int // of the offending byte in Text, from 0
	Problem string
}

func (e *ListError) Error() string {
	return fmt.Sprintf("parse list %q: at %d: %s", e.Text, e.Offset+1, e.Problem)
}

// New returns the set of the given numbers, in any order and with repeats. It panics on a
// negative number.
func New(ids ...int) Set {
	s := slices.Clone(ids)
	slices.Sort(s)
	s = slices.Compact(s)
	if len(s) > 0 && s[0] < 0 {
		panic("host: negative member of an IDSet: " + strconv.Itoa(s[0]))
	}
	return s
}

// Parse reads the kernel's list format: numbers and ascending ranges joined by commas, in any
// order, with blanks around them. Only blanks give the empty set. The error is a *ListError.
func Parse(text string) (Set, error) {
	if strings.Trim(text, listBlanks) == "" {
		return Set{}, nil
	}
	var ranges [][2]int
	for offset := 0; ; {
		item, rest, more := strings.Cut(text[offset:], ",")
		low, high, err := parseRange(text, offset, item)
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, [2]int{low, high})
		if !more {
			return fromRanges(ranges), nil
		}
		offset = len(text) - len(rest)
	}
}

// fromRanges makes a set of ranges that may overlap. Each number is written once, however often it is named.
func fromRanges(ranges [][2]int) Set {
	slices.SortFunc(ranges, func(a, b [2]int) int { return a[0] - b[0] })
	s := Set{}
	for _, r := range ranges {
		if len(s) > 0 {
			r[0] = max(r[0], s[len(s)-1]+1)
		}
		for id := r[0]; id <= r[1]; id++ {
			s = append(s, id)
		}
	}
	return s
}

const listBlanks = " \t\n"

// parseRange reads "3" or "0-3", which stands at offset of text.
func parseRange(text string, offset int, item string) (low, high int, err error) {
	first, last, isRange := strings.Cut(item, "-")
	if low, err = parseID(text, offset, first); err != nil {
		return 0, 0, err
	}
	if !isRange {
		return low, low, nil
	}
	if high, err = parseID(text, offset+len(first)+1, last); err != nil {
		return 0, 0, err
	}
	if high < low {
		return 0, 0, &ListError{text, offset + leadingBlanks(item),
			fmt.Sprintf("range %d-%d runs backwards", low, high)}
	}
	return low, high, nil
}

func parseID(text string, offset int, field string) (int, error) {
	offset += leadingBlanks(field)
	digits := strings.Trim(field, listBlanks)
	if digits == "" {
		return 0, &ListError{text, min(offset, len(text)), "a number is missing"}
	}
	id := 0
	for i := range len(digits) {
		c := digits[i]
		if c < '0' || c > '9' {
			return 0, &ListError{text, offset + i, fmt.Sprintf("%q is not a number", digits)}
		}
		if id = id*10 + int(c-'0'); id > MaxID {
			return 0, &ListError{text, offset, fmt.Sprintf("%s is above %d", digits, MaxID)}
		}
	}
	return id, nil
}

func leadingBlanks(s string) int { return len(s) - len(strings.TrimLeft(s, listBlanks)) }

// String returns the shortest list format: "0-3,8". Two neighbours are a range too, as the kernel prints them.
func (s Set) String() string {
	var b strings.Builder
	for i := 0; i < len(s); {
		j := i
		for j+1 < len(s) && s[j+1] == s[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(s[j]))
		}
		i = j + 1
	}
	return b.String()
}

// Contains says whether id is a member.
func (s Set) Contains(id int) bool {
	_, found := slices.BinarySearch(s, id)
	return found
}

// Union returns the numbers that are in s, in t or in both.
func (s Set) Union(t Set) Set {
	return New(append(slices.Clone(s), t...)...)
}

// Minus returns the numbers of s that are not in t.
func (s Set) Minus(t Set) Set {
	return s.filter(func(id int) bool { return !t.Contains(id) })
}

// Intersect returns the numbers that are in both.
func (s Set) Intersect(t Set) Set {
	return s.filter(t.Contains)
}

func (s Set) filter(keep func(int) bool) Set {
	out := Set{}
	for _, id := range s {
		if keep(id) {
			out = append(out, id)
		}
	}
	return out
}

// Subset says whether every member of s is in t.
func (s Set) Subset(t Set) bool { return len(s.Minus(t)) == 0 }

// Equal says whether both have the same members; a nil set equals an empty one.
func (s Set) Equal(t Set) bool { return slices.Equal(s, t) }

// MarshalText gives the list format, so that JSON shows "0-3,8".
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the list format.
func (s *Set) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}
