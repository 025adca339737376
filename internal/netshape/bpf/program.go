package bpf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"bulkhead/internal/linux/tc"
)

// Major is that of the classes that programs sort into. It stands in the names of these programs.
const Major = 0x7fff

// Names of programs: at most 15 bytes, as the kernel takes.
const (
	sorterPrefix  = "bh_7fff_"
	policerPrefix = "bp"
	counterOut    = "bcount_out"
	counterIn     = "bcount_in"
)

// Counters are the names of the programs that count, for each direction.
var Counters = []string{counterOut, counterIn}

// SorterName is the name of the program that sorts into a class.
func SorterName(class tc.Handle) string {
	return fmt.Sprintf("%s%04x", sorterPrefix, uint32(class&0xffff))
}

// SorterClass is the class that a program of ours sorts into.
func SorterClass(name string) (tc.Handle, bool) {
	text, ok := strings.CutPrefix(name, sorterPrefix)
	if !ok || len(text) != 4 {
		return 0, false
	}
	minor, err := strconv.ParseUint(text, 16, 16)
	return tc.MakeHandle(Major, uint16(minor)), err == nil
}

// PolicerName is the name of the program that polices what arrives for the group of a class at an interface.
func PolicerName(class tc.Handle, index int) string {
	return fmt.Sprintf("%s%04x_%08x", policerPrefix, uint32(class&0xffff), uint32(index))
}

// PolicerIndex is the interface that a policer of ours is for.
func PolicerIndex(name string) (index int, ok bool) {
	var minor, at uint32
	n, err := fmt.Sscanf(name, policerPrefix+"%04x_%08x", &minor, &at)
	return int(at), err == nil && n == 2 && len(name) == len(policerPrefix)+13
}

// Program is a BPF program on a cgroup2 directory.
type Program struct {
	Cgroup string  `json:"cgroup,omitempty"` // absolute path of the directory
	Name   string  `json:"name,omitempty"`
	ID     uint32  `json:"id,omitempty"`   // the kernel's; 0 when it is to be made
	Rate   tc.Rate `json:"rate,omitempty"` // of one that polices
}

// ErrNoKernel says that the kernel lacks a piece. What is returned wraps it with the piece.
var ErrNoKernel = errors.New("the kernel lacks a piece")

// hook is where a program is attached.
func (p *Program) hook() ebpf.AttachType {
	if _, polices := PolicerIndex(p.Name); polices || p.Name == counterIn {
		return ebpf.AttachCGroupInetIngress
	}
	return ebpf.AttachCGroupInetEgress
}
