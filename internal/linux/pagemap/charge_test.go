package pagemap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"testing"
)

// words makes a file of 64-bit words.
func words(w ...uint64) *bytes.Reader {
	var b []byte
	for _, v := range w {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return bytes.NewReader(b)
}

func TestChargeReader(t *testing.T) {
	const here = pagemapPresent
	groups := make([]uint64, 400)
	for i := range groups {
		groups[i] = 7
	}
	groups[3], groups[5], groups[300] = 20, 30, 0
	flags := make([]uint64, len(groups))
	for i := 301; i < 304; i++ { // a compound page, whose group stands at its first frame alone
		flags[i], groups[i] = compoundTail, 0
	}
	flags[301], groups[301] = compoundHead, 40
	flags[0], groups[0] = compoundTail, 0 // of a page that begins in another block
	pages := words(here|3, 0, here|300, 1<<62|9, here|5, here|3, here|399, here|5000, here|303, here|301, here|302,
		here|0x200000000, here|1)
	read := func(from, to uint64) (map[uint64]int64, error) {
		r := chargeReader{pages: pages, groups: words(groups...), flags: words(flags...), page: 4096,
			bytes: map[uint64]int64{}}
		if err := r.add(t.Context(), from, to); err != nil {
			return nil, err
		}
		return r.bytes, r.flush()
	}
	for name, c := range map[string]struct {
		from, to uint64
		want     map[uint64]int64
	}{
		"every kind":                    {0, 8 * 4096, map[uint64]int64{20: 8192, 30: 4096, 7: 4096, 0: 4096}},
		"one page":                      {4 * 4096, 5 * 4096, map[uint64]int64{30: 4096}},
		"swapped out, or never touched": {4096, 2 * 4096, map[uint64]int64{}},
		"past the end of the groups":    {7 * 4096, 8 * 4096, map[uint64]int64{}},
		"past the end of both":          {11 * 4096, 12 * 4096, map[uint64]int64{}},
		"past the end":                  {90 * 4096, 99 * 4096, map[uint64]int64{}},
		"a huge page":                   {8 * 4096, 11 * 4096, map[uint64]int64{40: 3 * 4096}},
		"the kernel's: [vsyscall]":      {0xffffffffff600000, 0xffffffffff601000, map[uint64]int64{}},
		"nothing":                       {4096, 4096, map[uint64]int64{}},
	} {
		if got, err := read(c.from, c.to); err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
	pages = words(here)
	if _, err := read(0, 4096); !errors.Is(err, ErrNoCharges) {
		t.Errorf("hidden frames: %v", err)
	}
}

func TestParseAddresses(t *testing.T) {
	from, to, err := parseAddresses("55d0c0e00000-55d0c0e42000 r--p 00000000 fe:00 1234 /usr/sbin/mariadbd\n")
	if err != nil || from != 0x55d0c0e00000 || to != 0x55d0c0e42000 {
		t.Errorf("%x-%x, %v", from, to, err)
	}
	for _, bad := range []string{"", "12", "zz-1 r", "1-zz r", "20-10 r"} {
		if _, _, err := parseAddresses(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
