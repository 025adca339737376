package tc

import (
	"encoding/binary"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Layout of struct ethtool_cmd and struct ifreq (include/uapi/linux/ethtool.h, if.h).
const (
	ethtoolGetSettings = 0x1
	ethtoolSize        = 44
	ethtoolSpeed       = 12
	ethtoolSpeedHigh   = 28
)

type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// Speed is the rate of a link as its driver says it; 0 when it does not, or only pretends to: a veth pair says 10
// Gbit/s, whatever it carries.
func (k *Conn) Speed(l Link) Rate {
	if !slices.Contains([]string{"", "bond", "team", "vlan"}, l.Kind) {
		return 0
	}
	buf := make([]byte, ethtoolSize)
	binary.NativeEndian.PutUint32(buf, ethtoolGetSettings)
	r := ifreq{data: unsafe.Pointer(&buf[0])}
	copy(r.name[:unix.IFNAMSIZ-1], l.Name)
	// Any socket of the namespace does.
	socket := uintptr(k.tc.Socket.GetFd())
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, socket, unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	runtime.KeepAlive(buf)
	if errno != 0 {
		return 0
	}
	low, high := binary.NativeEndian.Uint16(buf[ethtoolSpeed:]), binary.NativeEndian.Uint16(buf[ethtoolSpeedHigh:])
	speed := uint32(high)<<16 | uint32(low)
	if speed == 0 || speed == 1<<32-1 || speed == 1<<16-1 {
		return 0
	}
	return Rate(speed) * Mbit
}
