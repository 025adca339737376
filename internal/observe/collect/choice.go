package collect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/observe"
)

// Choice is which collectors are on: for good, and for a time. The zero value is all of them, but those that are off
// until asked for. It is kept as JSON.
type Choice struct {
	// Set are those that are on for good; nil is all that need not be asked for.
	Set []observe.Part `json:"set"`
	// Asked are, where Set is nil, those that were asked for beside them.
	Asked []observe.Part `json:"asked,omitempty"`
	// For are switches of limited duration over that, at most one for each collector.
	For []Temporary `json:"for,omitempty"`
}

// Temporary is a switch that ends by itself.
type Temporary struct {
	Name  observe.Part `json:"collector"`
	On    bool         `json:"on"`
	Until time.Time    `json:"until"`
}

// Change is what is asked for.
type Change struct {
	Verb  Verb     `json:"verb"`
	Names []string `json:"collectors,omitempty"`
	// For is how long it holds; 0 is for good.
	For time.Duration `json:"for_ns,omitempty"`
}

// Verb is how collectors are switched.
type Verb string

// The verbs.
const (
	Enable  Verb = "enable"
	Disable Verb = "disable"
	Set     Verb = "set"   // exactly these
	Reset   Verb = "reset" // as at first, for good
)

// UnknownError says that there are no such collectors.
type UnknownError struct{ Names []string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("there is no collector %s; nothing was changed", strings.Join(e.Names, ", "))
}

// With gives the choice after a change. A name that is not known changes nothing: the error is an *UnknownError.
func (c Choice) With(change Change, now time.Time) (Choice, error) {
	names, err := parts(change.Names, change.Verb != Disable)
	if err == nil && change.For < 0 {
		err = fmt.Errorf("for %s is no time; nothing was changed", change.For)
	}
	if err != nil {
		return c, err
	}
	next := Choice{Set: slices.Clone(c.Set), Asked: slices.Clone(c.Asked)}
	for _, t := range c.For {
		if t.Until.After(now) {
			next.For = append(next.For, t)
		}
	}
	switch change.Verb {
	case Enable, Disable:
		next.lift(names)
		next.turn(names, change.Verb == Enable, change.For, now)
	case Set:
		next.For = nil
		if change.For > 0 {
			next.turn(observe.Parts, false, change.For, now)
			next.lift(names)
			next.turn(names, true, change.For, now)
			break
		}
		next.Set, next.Asked = names, nil
	case Reset:
		next = Choice{}
	default:
		return c, fmt.Errorf("%q is no way to switch collectors; nothing was changed", change.Verb)
	}
	return next, nil
}

// lift ends switches of limited duration.
func (c *Choice) lift(names []observe.Part) {
	c.For = slices.DeleteFunc(c.For, func(t Temporary) bool { return slices.Contains(names, t.Name) })
}

// turn switches collectors that no other switch of limited duration holds.
func (c *Choice) turn(names []observe.Part, on bool, span time.Duration, now time.Time) {
	if span > 0 {
		for _, name := range names {
			c.For = append(c.For, Temporary{Name: name, On: on, Until: now.Add(span)})
		}
		return
	}
	set := []observe.Part{}
	for _, p := range observe.Parts {
		if named := slices.Contains(names, p); named && on || !named && c.forGood(p) {
			set = append(set, p)
		}
	}
	var asked []observe.Part
	usual := 0
	for _, p := range observe.Parts {
		if !p.Asked() {
			usual++
		} else if slices.Contains(set, p) {
			asked = append(asked, p)
		}
	}
	if c.Set, c.Asked = set, nil; len(set)-len(asked) == usual {
		c.Set, c.Asked = nil, asked // so that one that a later version brings is on, too
	}
}

func (c *Choice) forGood(p observe.Part) bool {
	if c.Set != nil {
		return slices.Contains(c.Set, p)
	}
	return !p.Asked() || slices.Contains(c.Asked, p)
}

// On says whether a collector is on, and until when a switch of limited duration says so; zero: for good.
func (c *Choice) On(p observe.Part, now time.Time) (on bool, until time.Time) {
	for _, t := range c.For {
		if t.Name == p && t.Until.After(now) {
			return t.On, t.Until
		}
	}
	return c.forGood(p), time.Time{}
}

// Ends is when the next switch of limited duration ends; zero without one.
func (c *Choice) Ends(now time.Time) (at time.Time) {
	for _, t := range c.For {
		if t.Until.After(now) && (at.IsZero() || t.Until.Before(at)) {
			at = t.Until
		}
	}
	return at
}

// parts are the collectors of these names, and of these tiers, in the order of the table. On says that they are to be
// on: then a tier has no part in those that are to be asked for by name.
func parts(names []string, on bool) (all []observe.Part, err error) {
	var unknown []string
	named := map[observe.Part]bool{}
	for _, name := range names {
		found := observe.PartsOf(name)
		if len(found) == 0 {
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
		for _, p := range found {
			if string(p) == name || !on || !p.Asked() {
				named[p] = true
			}
		}
	}
	if len(unknown) > 0 {
		return nil, &UnknownError{unknown}
	}
	all = []observe.Part{}
	for _, p := range observe.Parts {
		if named[p] {
			all = append(all, p)
		}
	}
	return all, nil
}
