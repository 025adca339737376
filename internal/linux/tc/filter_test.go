package tc

import (
	"encoding/hex"
	"testing"
)

// shown618 is what kernel 6.18 lists as the options of the u32 filter that redirects what goes to port 3306 to
// interface 3.
const shown618 = "" +
	"54000500010004000000000000000000000000000f000000050000000000" +
	"00000000000000001fff00000000040000000000000000ff000000060000" +
	"08000000000000000000ffff00000cea1400000000000000080002000000" +
	"008008000b0008000000a8000700a40001000b0001006d69727265640000" +
	"440004001400010000000000000000000000000000000000140007000000" +
	"000000000000000000000000000018000300000000000000000000000000" +
	"000000000000000008000a00000000004800020020000200010000000000" +
	"000004000000010000000100000001000000030000002400010000000000" +
	"00000000000000000000000000000000000000000000000000000000"

func TestFilterThereAndBack(t *testing.T) {
	nic := func(index int) string {
		if index == 3 {
			return "bhifb2"
		}
		return ""
	}
	for _, f := range []Filter{
		{Protocol: ProtoIPv4, Port: 3306, Class: 0x7fff0020},
		{Protocol: ProtoIPv6, Port: 3306, Class: 0x7fff0020},
		{Protocol: ProtoIPv4, Port: 65535, Source: true, Class: 0x7fffffe0},
		{Protocol: ProtoIPv6, Port: 1, Source: true, Class: 0x7fff0020},
		{Protocol: ProtoIPv4, Port: 3306, Redirect: "bhifb2"},
		{Protocol: ProtoIPv6, Port: 3306, Redirect: "bhifb2"},
		{Protocol: ProtoAll, NetCls: true},
	} {
		r := Record{Kind: f.Kind(), Handle: 0x80000800, Info: FilterInfo(0x7000, f.Protocol), Options: f.Options(3)}
		if got, ok := ParseFilter(r, nic); !ok || got != f {
			t.Errorf("%s came back as %s, %v", f, got, ok)
		}
		if got, ok := ParseFilter(r, func(int) string { return "" }); ok && f.Redirect != "" {
			t.Errorf("%s to another interface came back as %s", f, got)
		}
		if r.Protocol() != f.Protocol || r.Pref() != 0x7000 {
			t.Errorf("%s: protocol %x, preference %d", f, r.Protocol(), r.Pref())
		}
	}
}

func TestFilterShown(t *testing.T) {
	b, err := hex.DecodeString(shown618)
	if err != nil {
		t.Fatal(err)
	}
	r := Record{Kind: "u32", Handle: 0x80000800, Parent: IngressHandle, Info: 0x70000008, Options: b}
	want := Filter{Protocol: ProtoIPv4, Port: 3306, Redirect: "bhifb2"}
	if got, ok := ParseFilter(r, func(int) string { return "bhifb2" }); !ok || got != want {
		t.Errorf("got %s, %v", got, ok)
	}
	if index, ok := RedirectOf(r); !ok || index != 3 {
		t.Errorf("leads to %d, %v", index, ok)
	}
	if set := Writable(r); len(set.Options) != len(b)-16 || set.Handle != 0x800 {
		t.Errorf("its flags or its table are still there: %#x %x", uint32(set.Handle), set.Options)
	}
}

// Whatever another program or a newer kernel lists, it is read without a panic.
func FuzzFilter(f *testing.F) {
	b, err := hex.DecodeString(shown618)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("u32", b)
	f.Add("matchall", []byte{8, 0, 1, 0, 1, 2, 3, 4})
	f.Add("u32", []byte{11, 0, 5, 0, 1, 2, 3, 4, 5, 6, 7}) // the last one has no padding
	f.Fuzz(func(t *testing.T, kind string, options []byte) {
		r := Record{Kind: kind, Handle: 1, Info: FilterInfo(0x7000, ProtoIPv4), Options: options}
		ParseFilter(r, func(int) string { return "x" })
		RedirectOf(r)
		Writable(r)
		ParseHTBClass(options)
		LeafSame(kind, Mbit, r)
	})
}
