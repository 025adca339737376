package blockdev

import (
	"slices"
	"testing"
)

func TestActiveScheduler(t *testing.T) {
	for text, want := range map[string]string{
		"noop [deadline] cfq": "deadline", "[none] mq-deadline": "none", "none": "none", "": "", "noop deadline": "",
	} {
		if got := activeScheduler(text); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
}

func TestCompareNumbers(t *testing.T) {
	got := []string{"259:0", "8:16", "8:2", "11:0", "8:2"}
	slices.SortFunc(got, compareNumbers)
	if want := []string{"8:2", "8:2", "8:16", "11:0", "259:0"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
