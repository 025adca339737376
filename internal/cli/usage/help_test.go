package usage_test

import (
	"testing"

	"bulkhead/internal/cli/usage"
)

// Help fits the terminal: paragraphs are filled anew, lists and flags go on below their own text.
func TestFold(t *testing.T) {
	const text = "verify reads every limit back from the kernel and\ncompares.\n\nUsage:\n  verify [flags]\n\n" +
		"Flags:\n      --span duration   how long each measurement takes (default 2s)\n" +
		"  -h, --help            help\n"
	const want = "verify reads every limit back from the\nkernel and compares.\n\nUsage:\n  verify [flags]\n\n" +
		"Flags:\n      --span duration   how long each\n                        measurement\n" +
		"                        takes (default\n                        2s)\n" +
		"  -h, --help            help\n"
	if got := usage.Fold(text, 40); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
	if got := usage.Fold(text, 0); got != text {
		t.Errorf("without a width it becomes\n%s", got)
	}
}
