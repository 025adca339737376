package procevents

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// capturedEvents are the datagrams in testdata, which hold them in little-endian.
func capturedEvents(t testing.TB) [][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "procevents.hex"))
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		data, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data)
	}
	return all
}

// swapped turns a captured datagram into what a big-endian kernel sends.
func swapped(data []byte) []byte {
	b := append([]byte{}, data...)
	flip := func(from, size int) {
		for i, j := from, from+size-1; i < j; i, j = i+1, j-1 {
			b[i], b[j] = b[j], b[i]
		}
	}
	for _, at := range []int{0, 8, 12, 16, 20, 24, 28, 36, 40, 52, 56, 60, 64, 68, 72} {
		flip(at, 4)
	}
	for _, at := range []int{4, 6, 32, 34} {
		flip(at, 2)
	}
	flip(44, 8)
	return b
}

func TestProcEventsAsCaptured(t *testing.T) {
	const want = "fork exit fork exec fork exec fork gid uid exec comm fork exec exit exit exit fork exec exec exit " +
		"exit"
	for name, order := range map[string]binary.ByteOrder{"little": binary.LittleEndian, "big": binary.BigEndian} {
		var kinds []string
		var forks, execs []Event
		sequence := procSequence{}
		for _, data := range capturedEvents(t) {
			if order == binary.BigEndian {
				data = swapped(data)
			}
			messages, err := parseProcMessages(order, data, nil)
			if err != nil || len(messages) != 1 {
				t.Fatalf("%s: %d messages, %v", name, len(messages), err)
			}
			if lost := sequence.skipped(&messages[0]); lost != 0 {
				t.Errorf("%s: %d lost before %+v", name, lost, messages[0])
			}
			e, ok := messages[0].event()
			if !ok {
				continue
			}
			kinds = append(kinds, e.Kind.String())
			switch e.Kind {
			case Fork:
				forks = append(forks, e)
			case Exec:
				execs = append(execs, e)
			}
		}
		if got := strings.Join(kinds, " "); got != want {
			t.Errorf("%s-endian: %s\nwant %s", name, got, want)
		}
		for _, e := range append(forks, execs...) {
			if e.PID <= 0 || e.Kind == Fork && (e.Parent <= 0 || e.Parent == e.PID) {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if forks[1].Parent != forks[0].PID && forks[2].Parent != forks[1].PID {
			t.Errorf("%s: no chain in %+v", name, forks)
		}
	}
}

func TestProcMessagesInOneDatagram(t *testing.T) {
	var joined []byte
	captured := capturedEvents(t)
	for _, data := range captured {
		joined = append(joined, data...)
	}
	messages, err := parseProcMessages(binary.LittleEndian, joined, nil)
	if err != nil || len(messages) != len(captured) {
		t.Errorf("%d messages of %d, %v", len(messages), len(captured), err)
	}
}

func TestProcMessagesThatAreNone(t *testing.T) {
	event := capturedEvents(t)[0]
	edit := func(change func(b []byte) []byte) []byte { return change(append([]byte{}, event...)) }
	le := binary.LittleEndian
	tests := []struct {
		name string
		data []byte
		want int // messages
		bad  bool
	}{
		{"nothing", nil, 0, false},
		{"a header cut off", event[:10], 0, true},
		{"a message cut off", event[:40], 0, true},
		{"a length of nothing", edit(func(b []byte) []byte { le.PutUint32(b, 0); return b }), 0, true},
		{"a length beyond the end", edit(func(b []byte) []byte { le.PutUint32(b, 77); return b }), 0, true},
		{"a huge length", edit(func(b []byte) []byte { le.PutUint32(b, 1<<32-1); return b }), 0, true},
		{"a header of a connector alone", edit(func(b []byte) []byte { le.PutUint32(b, 30); return b[:30] }), 0, true},
		{"an event longer than its message", edit(func(b []byte) []byte { le.PutUint16(b[32:], 41); return b }), 0,
			true},
		{"an event too short", edit(func(b []byte) []byte { le.PutUint16(b[32:], 16); return b }), 0, true},
		{"another connector", edit(func(b []byte) []byte { le.PutUint32(b[16:], 9); return b }), 0, false},
		{"an error of netlink", edit(func(b []byte) []byte { le.PutUint16(b[4:], 2); return b }), 0, false},
		{"a longer event of a newer kernel", edit(func(b []byte) []byte {
			le.PutUint32(b, 84)
			le.PutUint16(b[32:], 48)
			return append(b, make([]byte, 8)...)
		}), 1, false},
		{"one and garbage", append(append([]byte{}, event...), "garbage!"...), 1, true},
		{"one with padding cut off", append(append([]byte{}, event...),
			edit(func(b []byte) []byte { le.PutUint32(b, 75); return b[:75] })...), 1, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			messages, err := parseProcMessages(le, test.data, nil)
			if len(messages) != test.want || (err != nil) != test.bad {
				t.Errorf("%d messages, %v", len(messages), err)
			}
		})
	}
}

func TestProcEventsOfThreadsAreNone(t *testing.T) {
	tests := []struct {
		message procMessage
		want    Event
		none    bool
	}{
		{message: procMessage{what: Fork, ids: [4]int32{11, 10, 20, 20}}, want: Event{Kind: Fork, PID: 20, Parent: 10}},
		{message: procMessage{what: Fork, ids: [4]int32{10, 10, 21, 10}}, none: true},
		{message: procMessage{what: Exit, ids: [4]int32{20, 20}}, want: Event{Kind: Exit, PID: 20}},
		{message: procMessage{what: Exit, ids: [4]int32{21, 20}}, none: true},
		{message: procMessage{what: UID, ids: [4]int32{20, 20}}, want: Event{Kind: UID, PID: 20}},
		{message: procMessage{what: UID, ids: [4]int32{21, 20}}, none: true},
		{message: procMessage{what: Comm, ids: [4]int32{21, 20}}, none: true},
		{message: procMessage{what: Exec, ids: [4]int32{21, 20}}, want: Event{Kind: Exec, PID: 20}},
		{message: procMessage{what: 0x80, ids: [4]int32{20, 20}}, none: true},     // session
		{message: procMessage{what: 0x400, ids: [4]int32{20, 20}}, none: true},    // of a kernel to come
		{message: procMessage{what: 0, ids: [4]int32{1, 1}}, none: true},          // an answer
		{message: procMessage{what: Fork, ids: [4]int32{1, 1, 0, 0}}, none: true}, // outside our pid namespace
		{message: procMessage{what: Exec, ids: [4]int32{-5, -5}}, none: true},
	}
	for _, test := range tests {
		if got, ok := test.message.event(); ok == test.none || ok && got != test.want {
			t.Errorf("%+v gives %+v, %t", test.message, got, ok)
		}
	}
}

func TestProcSequence(t *testing.T) {
	sequence := procSequence{}
	for i, step := range []struct {
		cpu, seq uint32
		lost     int
	}{
		{0, 100, 0}, {1, 7, 0}, {0, 101, 0}, {0, 103, 1}, {1, 8, 0}, {1, 12, 3},
		{0, 50, 0}, // it began anew
		{0, 51, 0},
		{2, 1<<32 - 1, 0}, {2, 0, 0}, {2, 2, 1}, // it wraps
	} {
		if got := sequence.skipped(&procMessage{cpu: step.cpu, seq: step.seq}); got != step.lost {
			t.Errorf("step %d: %d lost, want %d", i, got, step.lost)
		}
	}
}

func TestProcRequest(t *testing.T) {
	// As libcgroup's daemon and the kernel's own sample send it; the second with struct proc_input of 6.6.
	for mask, want := range map[Kind]string{
		0:    "28000000 0300 0000 00000000 00000000 01000000 01000000 00000000 07000000 0400 0000 01000000",
		Exec: "2c000000 0300 0000 00000000 00000000 01000000 01000000 00000000 07000000 0800 0000 01000000 02000000",
	} {
		if got := hex.EncodeToString(procRequest(binary.LittleEndian, listen, mask, 7)); got != strings.ReplaceAll(want,
			" ", "") {
			t.Errorf("mask %s: %s", mask, got)
		}
	}
}

func TestProcEventKindText(t *testing.T) {
	for kind, want := range map[Kind]string{Exec: "exec", Fork | Exit: "fork|exit", 0x400: "0x400", 0: ""} {
		if got := fmt.Sprint(kind); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestNoProcEventsSaysWhy(t *testing.T) {
	for err, want := range map[error]string{
		unix.EPERM: "CAP_NET_ADMIN is missing", unix.EPROTONOSUPPORT: "CONFIG_CONNECTOR",
		unix.ECONNREFUSED: "network namespace", unix.EMFILE: "too many open files",
	} {
		if got := refusedEvents(err); !errors.Is(got, ErrUnavailable) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func FuzzParseProcMessages(f *testing.F) {
	for _, data := range capturedEvents(f) {
		f.Add(data, false)
		f.Add(append(swapped(data), swapped(data)...), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, big bool) {
		var order binary.ByteOrder = binary.LittleEndian
		if big {
			order = binary.BigEndian
		}
		messages, err := parseProcMessages(order, data, nil)
		if len(messages) > len(data)/(nlHeader+cnHeader+eventSize)+1 {
			t.Fatalf("%d messages in %d bytes", len(messages), len(data))
		}
		if err == nil && len(data) > 0 && len(data) < nlHeader {
			t.Fatalf("%d bytes are no message", len(data))
		}
		for i := range messages {
			if e, ok := messages[i].event(); ok && (e.PID <= 0 || e.Kind&^procKinds != 0) {
				t.Fatalf("%+v", e)
			}
		}
	})
}
