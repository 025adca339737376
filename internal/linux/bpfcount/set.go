package bpfcount

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// The slots that are no group's, as in count.bpf.c, and how many slots there are at least and at most: the memory of
// the kernel that they take is 8 bytes times their square, for each CPU.
const (
	outside, idle         = 0, 1
	leastSlots, mostSlots = 16, 128
)

// word is the size of a sum, in bytes.
const word = 8

// directoriesMost is how many directories groups can have together. Those below them need not be told.
const directoriesMost = 4096

// set is an object that is loaded: programs, and what they count in.
type set struct {
	loaded        *ebpf.Collection
	programs      []string // that are attached, in this order
	links         []link.Link
	blame, counts *ebpf.Memory // nil where the object has no such maps
}

// sized is an object for a number of slots, with sizes of its maps.
func sized(object []byte, slots int, sizes map[string]int) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read the object of BPF programs: %w", err)
	}
	if v := spec.Variables["slots"]; v != nil {
		if err := v.Set(uint32(slots)); err != nil {
			return nil, fmt.Errorf("set the number of slots: %w", err)
		}
	}
	for name, n := range sizes {
		spec.Maps[name].MaxEntries = uint32(n)
	}
	return spec, nil
}

// load loads an object; its programs count nothing yet.
func load(spec *ebpf.CollectionSpec, programs []string) (*set, error) {
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	s := &set{loaded: loaded, programs: programs}
	for name, to := range map[string]**ebpf.Memory{"blame": &s.blame, "counts": &s.counts} {
		m := loaded.Maps[name]
		if m == nil {
			continue
		}
		if *to, err = m.Memory(); err != nil {
			return nil, errors.Join(fmt.Errorf("map %s: %w", name, err), s.Close())
		}
	}
	return s, nil
}

// attach has the programs count.
func (s *set) attach() error {
	if len(s.links) > 0 {
		return nil
	}
	for _, name := range s.programs {
		l, err := link.AttachTracing(link.TracingOptions{Program: s.loaded.Programs[name]})
		if err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		s.links = append(s.links, l)
	}
	return nil
}

// detach has them count no more.
func (s *set) detach() error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	s.links = nil
	return errors.Join(errs...)
}

// Close ends the programs, and frees what they counted in. There may be none.
func (s *set) Close() error {
	if s == nil {
		return nil
	}
	err := s.detach()
	s.loaded.Close()
	return err
}

// tell has a map of the kernel hold what next does, where it holds what had does.
func tell[K, V comparable](m *ebpf.Map, had, next map[K]V) error {
	for key := range had {
		if _, still := next[key]; !still {
			if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
	}
	for key, value := range next {
		if was, is := had[key]; is && was == value {
			continue
		}
		if err := m.Put(key, value); err != nil {
			return err
		}
	}
	return nil
}
