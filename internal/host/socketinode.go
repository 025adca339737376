package host

import "strconv"

// SocketInodes returns the inode numbers of the sockets that a process has open. A process that has exited matches ErrExited.
func (h *Host) SocketInodes(pid int) ([]uint32, error) {
	dir, err := h.openProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	texts, err := dir.sockets()
	if err != nil {
		return nil, dir.failed(err)
	}
	inodes := make([]uint32, 0, len(texts))
	for _, text := range texts {
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			inodes = append(inodes, uint32(n))
		}
	}
	return inodes, nil
}
