package sockets

import (
	"net/netip"
	"strings"
)

// Address is an IP address and a port.
type Address = netip.AddrPort

// ParseSSHConnection reads sshd's variable SSH_CONNECTION: "client port server port".
func ParseSSHConnection(text string) (local, remote Address, ok bool) {
	words := strings.Fields(text)
	if len(words) != 4 {
		return local, remote, false
	}
	remote, err1 := join(words[0], words[1])
	local, err2 := join(words[2], words[3])
	return local, remote, err1 == nil && err2 == nil
}

func join(address, port string) (Address, error) {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return netip.ParseAddrPort(address + ":" + port)
}
