package probe

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Touch takes so many bytes of memory more.
type Touch struct {
	Bytes int64 `json:"bytes"`
	// Hard keeps them: beyond a limit that ends in a kill. Else the kernel may take them back when it needs them
	// (MADV_FREE, kernel 4.5), which is what it does at a limit instead of killing.
	Hard bool `json:"hard,omitempty"`
}

func (t *Touch) run(s *server) (a Answer, err error) {
	m, err := unix.Mmap(-1, 0, int(t.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return a, fmt.Errorf("map %d bytes: %w", t.Bytes, err)
	}
	_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // a huge page that is given back is split first, and late
	s.maps = append(s.maps, m)
	const page, part = 4096, 1 << 20
	for at := 0; at < len(m); at += part {
		piece := m[at:min(at+part, len(m))]
		for i := 0; i < len(piece); i += page {
			piece[i] = 1
		}
		if t.Hard {
			continue
		}
		if err := unix.Madvise(piece, unix.MADV_FREE); err != nil {
			return a, fmt.Errorf("let the kernel have %d bytes back: %w", len(piece), err)
		}
	}
	a.Bytes = t.Bytes
	return a, nil
}
