package collect

import (
	"fmt"
	"testing"
	"time"
)

func TestUnknown(t *testing.T) {
	_, err := Choice{}.With(Change{Verb: Enable, Names: []string{"cpu", "disks", "nets"}}, time.Now())
	if want := `there is no collector "disks", "nets"; nothing was changed`; fmt.Sprint(err) != want {
		t.Errorf("%v", err)
	}
	if next, err := (Choice{}).With(Change{Verb: Disable, Names: []string{"cpu"}, For: -1}, time.Now()); err == nil {
		t.Errorf("a time below zero gives %+v", next)
	}
	next, err := Choice{}.With(Change{Verb: Set, Names: []string{"lr"}}, time.Now())
	if err != nil || len(next.Set) != 6 {
		t.Errorf("a tier stands for %v: %v", next.Set, err)
	}
}
