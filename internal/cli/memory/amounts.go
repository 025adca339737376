package memory

import (
	"fmt"
	"strconv"

	"bulkhead/internal/policy"
)

func sizeOf(n int64) string { return policy.Bytes(n).Human() }

// human is an amount for people.
func human(n int64) string {
	if n == 0 {
		return "-"
	}
	return sizeOf(n)
}

func percent(n, of int64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(of))
}

func count(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}
