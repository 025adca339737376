package scenario

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"strings"

	"bulkhead/internal/policy"
)

//go:embed library/*.yaml
var library embed.FS

// Library gives the scenarios that come with the program, by name.
func Library() ([]*Scenario, error) {
	entries, err := library.ReadDir("library")
	if err != nil {
		return nil, fmt.Errorf("read the scenarios: %w", err)
	}
	var all []*Scenario
	for _, e := range entries {
		text, err := library.ReadFile("library/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("read scenario %q: %w", e.Name(), err)
		}
		s, err := Parse(policy.Source{Path: e.Name(), Text: string(text)})
		if err != nil {
			return nil, fmt.Errorf("read scenario %q: %w", e.Name(), err)
		}
		all = append(all, s)
	}
	return all, nil
}

// ErrUnknown says that a name is none of the library's.
var ErrUnknown = errors.New("no such scenario")

// maxFile is more than any scenario has.
const maxFile = 1 << 20

// Find gives a scenario by its name in the library, or by the path of a file: what holds a slash or ends in .yaml.
func Find(name string) (*Scenario, error) {
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".yaml") {
		info, err := os.Stat(name)
		if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile) {
			err = errors.New("not a regular file of at most 1 MiB")
		}
		if err != nil {
			return nil, fmt.Errorf("read scenario %q: %w", name, err)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read scenario: %w", err)
		}
		return Parse(policy.Source{Path: name, Text: string(text)})
	}
	all, err := Library()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return nil, fmt.Errorf("%w %q: there are %s", ErrUnknown, name, strings.Join(names, ", "))
}
