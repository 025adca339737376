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
	if err != nil || len(next.Set) != 8 {
		t.Errorf("a tier stands for %v: %v", next.Set, err)
	}
}

// All collectors, one after the other, are as all of them: then one that a later version brings is on, too.
func TestAllByName(t *testing.T) {
	var c Choice
	for _, change := range []Change{{Verb: Disable, Names: []string{"cpu"}}, {Verb: Enable, Names: []string{"cpu"}}} {
		var err error
		if c, err = c.With(change, time.Now()); err != nil {
			t.Fatal(err)
		}
		if all := c.Set == nil; all != (change.Verb == Enable) {
			t.Errorf("after %s: %v", change.Verb, c.Set)
		}
	}
}
