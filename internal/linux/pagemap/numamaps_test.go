package pagemap

import (
	"maps"
	"strings"
	"testing"
)

func TestParseNumaMaps(t *testing.T) {
	const text = `555555554000 default file=/usr/sbin/mariadbd mapped=1200 mapmax=2 N0=1200 kernelpagesize_kB=4
555557a00000 default heap anon=300 dirty=300 N0=290 N1=10 kernelpagesize_kB=4
7f0000000000 bind:1 anon=4 dirty=4 N1=4 kernelpagesize_kB=2048
7f1000000000 default file=/dev/zero\040(deleted) dirty=100 N0=60 N1=40 kernelpagesize_kB=4
7f2000000000 default
7f3000000000 interleave:0-1 file=/SYSV00000000\040(deleted) huge dirty=2 N0=1 N1=1 kernelpagesize_kB=2048
7ffc00000000 default stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4
7ffd00000000 default file=/usr/lib/x86_64-linux-gnu/libc.so.6 anon=2 dirty=2 mapped=300 N0=1 N1=299 kernelpagesize_kB=4
`
	got, err := parseNumaMaps([]byte(text))
	want := map[int]int64{0: (290+60+3)*4<<10 + 2048<<10, 1: (10+40)*4<<10 + 5*2048<<10}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for text, want := range map[string]string{
		"7f00 default anon=1 N0=x kernelpagesize_kB=4":                    `line 1: "N0=x"`,
		"7f00 default anon=1 N0=1 kernelpagesize_kB=4\n7f01 default Nx=1": `line 2: "Nx=1"`,
		"7f00 default anon=1 N0=-1":                                       `"N0=-1"`,
		"7f00 default file=/bin/true mapped=1 N0=1 kernelpagesize_kB=4":   "no page of its own",
	} {
		if _, err := parseNumaMaps([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got, err := parseNumaMaps(nil); err != nil || len(got) != 0 { // a zombie's, a kernel thread's
		t.Errorf("%v, %v", got, err)
	}
}
