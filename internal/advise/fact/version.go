package fact

import (
	"strconv"
	"strings"
)

// Since says whether a version is at least another, by their leading numbers: "7.0.1-rc2" is since "7.0".
func Since(have, want string) bool {
	h, w := numbers(have), numbers(want)
	for i, n := range w {
		switch {
		case i >= len(h):
			return n == 0
		case h[i] != n:
			return h[i] > n
		}
	}
	return true
}

func numbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(version, ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		all = append(all, n)
		if digits != part {
			break
		}
	}
	return all
}
