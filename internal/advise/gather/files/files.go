// Package files reads facts from single files. What cannot be read is a fact that is unknown, with the reason.
package files

import (
	"errors"
	"io/fs"
	"slices"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/sysroot"
)

// Because says in few words why something could not be read.
func Because(err error) fact.Value {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fact.Unknown("this kernel has no such file here")
	case errors.Is(err, fs.ErrPermission):
		return fact.Unknown("only root may read it")
	case errors.Is(err, sysroot.ErrNoAnswer):
		return fact.Unknown("its file system does not answer")
	}
	return fact.Unknown("%v", sysroot.Cause(err))
}

// Text is what a file holds, without blanks around it.
func Text(h *host.Host, file string) fact.Value {
	text, err := h.Root.ReadText(file)
	if err != nil {
		return Because(err)
	}
	return fact.Known(text, file)
}

// Number is the number that a file holds.
func Number(h *host.Host, file string) fact.Value {
	n, err := h.Root.ReadInt(file)
	if err != nil {
		return Because(err)
	}
	return fact.Known(n, file)
}

// List is what a function makes of the entries of a directory, without "", sorted and each once. Source says what the
// function reads.
func List(h *host.Host, dir, source string, of func(entry string) string) fact.Value {
	names, err := h.Root.ReadDir(dir)
	if err != nil {
		return Because(err)
	}
	list := []string{}
	for _, n := range names {
		if item := of(n); item != "" {
			list = append(list, item)
		}
	}
	slices.Sort(list)
	return fact.Known(slices.Compact(list), source)
}

// OrNone reads a file that says none by not being there.
func OrNone(read func(*host.Host, string) fact.Value, h *host.Host, file string, none any) fact.Value {
	if !h.Root.Exists(file) {
		return fact.Known(none, file+" is not there")
	}
	return read(h, file)
}
