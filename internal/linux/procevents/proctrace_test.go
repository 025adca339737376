package procevents

import (
	"encoding/binary"
	"slices"
	"testing"
)

// As kernel 6.1 prints it; since 6.18 clone_flags has eight bytes everywhere.
const newTask = `name: task_newtask
ID: 205
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:pid_t pid;	offset:8;	size:4;	signed:1;
	field:char comm[16];	offset:12;	size:16;	signed:0;
	field:unsigned long clone_flags;	offset:32;	size:8;	signed:0;

print fmt: "pid=%d comm=%s clone_flags=%lx", REC->pid, REC->comm, REC->clone_flags
`

func TestParseTraceFormat(t *testing.T) {
	got := parseTraceFormat([]byte(newTask))
	for name, want := range map[string]traceField{"pid": {8, 4}, "clone_flags": {32, 8}, "common_pid": {4, 4},
		"comm[16]": {12, 16}} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
	if len(got) != 5 {
		t.Errorf("%d fields: %v", len(got), got)
	}
	for _, text := range []string{"", "field:", "field:int x;\toffset:a;\tsize:4;", "field:int x;\toffset:1;",
		"field:int x;\toffset:40000;\tsize:4;", "\x00;;::"} {
		if got := parseTraceFormat([]byte(text)); len(got) != 0 {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestTraceProgramNeedsItsFields(t *testing.T) {
	for name, fields := range map[string]map[string]traceField{
		"none":       nil,
		"a wide pid": {"pid": {8, 8}, "clone_flags": {32, 8}},
		"no flags":   {"pid": {8, 4}},
		"odd flags":  {"pid": {8, 4}, "clone_flags": {32, 2}},
	} {
		if code, err := traceSubject(Fork, fields); err == nil {
			t.Errorf("%s: %v", name, code)
		}
	}
}

func TestParseTraceRecord(t *testing.T) {
	b := make([]byte, traceSize)
	binary.NativeEndian.PutUint64(b, 77)
	binary.NativeEndian.PutUint32(b[traceKind:], uint32(Exit))
	binary.NativeEndian.PutUint32(b[tracePID:], 12)
	binary.NativeEndian.PutUint32(b[traceParent:], 5)
	if e, ok := parseTraceRecord(b); !ok || e != (Event{Kind: Exit, PID: 12, Parent: 5, Time: 77}) {
		t.Errorf("%+v, %t", e, ok)
	}
	for _, bad := range [][]byte{nil, b[:traceSize-1], make([]byte, traceSize)} {
		if e, ok := parseTraceRecord(bad); ok {
			t.Errorf("%d bytes are %+v", len(bad), e)
		}
	}
}

func TestWithoutExecNames(t *testing.T) {
	event := func(kind Kind, pid int) Event { return Event{Kind: kind, PID: pid} }
	got := withoutExecNames([]Event{
		event(Comm, 1), event(Comm, 1), event(Fork, 2), event(Exec, 1), event(Comm, 2), event(Exec, 3), event(Comm, 3),
	})
	want := []Event{event(Comm, 1), event(Fork, 2), event(Exec, 1), event(Comm, 2), event(Exec, 3), event(Comm, 3)}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := withoutExecNames(nil); len(got) != 0 {
		t.Errorf("%v of nothing", got)
	}
}
