package gather

import (
	"errors"
	"io/fs"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/sysroot"
)

// because says in few words why something could not be read.
func because(err error) fact.Value {
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

func textOf(h *host.Host, file string) fact.Value {
	text, err := h.Root.ReadText(file)
	if err != nil {
		return because(err)
	}
	return fact.Known(text, file)
}

func number(h *host.Host, file string) fact.Value {
	n, err := h.Root.ReadInt(file)
	if err != nil {
		return because(err)
	}
	return fact.Known(n, file)
}
