package rule

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/policy"
)

//go:embed library/*.yaml
var library embed.FS

// Set is all rules that are in force, by id, and what is silenced.
type Set struct {
	Rules   []*Rule
	Silence []Silence
}

// Find returns a rule by its id, in any case of letters.
func (s *Set) Find(id string) (*Rule, bool) {
	i := slices.IndexFunc(s.Rules, func(r *Rule) bool { return strings.EqualFold(r.ID, id) })
	if i < 0 {
		return nil, false
	}
	return s.Rules[i], true
}

// Library gives the rules that come with the program.
func Library() (*Set, error) {
	set := &Set{}
	entries, err := library.ReadDir("library")
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	for _, e := range entries {
		text, err := library.ReadFile("library/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("read the rules: %w", err)
		}
		if err := set.add(policy.Source{Path: e.Name(), Text: string(text)}); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// maxSite bounds a file of a site, in bytes.
const maxSite = 1 << 20

// With gives the rules of the library with those of the *.yaml files in a directory, by name: a rule of a known id
// takes the other's place. A directory that is not there adds nothing.
func With(dir string) (*Set, error) {
	set, err := Library()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return set, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the rules of the site: %w", err)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		info, err := os.Stat(name)
		if err == nil && (!info.Mode().IsRegular() || info.Size() > maxSite) {
			err = errors.New("not a regular file of at most 1 MiB")
		}
		if err != nil {
			return nil, fmt.Errorf("read the rules of %q: %w", name, err)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the rules of the site: %w", err)
		}
		if err := set.add(policy.Source{Path: name, Text: string(text)}); err != nil {
			return nil, err
		}
	}
	for _, s := range set.Silence {
		if _, known := set.Find(s.Rule); !known {
			return nil, policy.Problems{{Pos: s.Pos, Msg: fmt.Sprintf("there is no rule %q to silence", s.Rule),
				Hint: "`bulkhead advise list` lists them"}}
		}
	}
	return set, nil
}

func (s *Set) add(src policy.Source) error {
	f, err := Parse(src)
	if err != nil {
		return err
	}
	for _, r := range f.Rules {
		if i := slices.IndexFunc(s.Rules, func(o *Rule) bool { return o.ID == r.ID }); i >= 0 {
			s.Rules[i] = r
			continue
		}
		s.Rules = append(s.Rules, r)
	}
	slices.SortFunc(s.Rules, func(a, b *Rule) int { return strings.Compare(a.ID, b.ID) })
	s.Silence = append(s.Silence, f.Silence...)
	return nil
}
