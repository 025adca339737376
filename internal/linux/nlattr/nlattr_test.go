package nlattr_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"bulkhead/internal/linux/nlattr"
)

func attribute(kind uint16, length int, value string) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(length))
	return append(binary.NativeEndian.AppendUint16(b, kind), value...)
}

func TestAll(t *testing.T) {
	list := append(attribute(1, 7, "abc\x00"), attribute(0x8002, 9, "value")...) // nested, the last without padding
	for what, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":             {nil, ""},
		"two":                 {list, "1=abc 2=value "},
		"a header cut off":    {append(attribute(1, 7, "abc\x00"), 9, 0), "1=abc "},
		"shorter than itself": {attribute(1, 3, "abcd"), ""},
		"longer than all":     {attribute(1, 99, "abcd"), ""},
	} {
		got := ""
		for kind, value := range nlattr.All(c.data) {
			got += fmt.Sprintf("%d=%s ", kind, value)
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
	if value, ok := nlattr.Find(list, 2); !ok || string(value) != "value" {
		t.Errorf("found %q, %v", value, ok)
	}
	if n, ok := nlattr.Uint32(list, 1); ok {
		t.Errorf("three bytes are the number %d", n)
	}
	if n, ok := nlattr.Uint32(list, 2); !ok || n != binary.NativeEndian.Uint32([]byte("valu")) {
		t.Errorf("got %x, %v", n, ok)
	}
	if n, ok := nlattr.Uint64(list, 2); ok {
		t.Errorf("five bytes are the number %d", n)
	}
}
