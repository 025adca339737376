package render

import (
	"bytes"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/advise"
	"bulkhead/internal/api"
	"bulkhead/internal/convert"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/verify"
)

// evil is what somebody may call a process, a file or a reason.
const evil = "x\nINTERRUPTED: evil\t\u202e\x1b[2J\u2028\x7f"

// fill sets every text inside v to evil, every list to one of its kind, and every switch to on.
func fill(v reflect.Value, on bool, depth int) {
	if depth > 12 || !v.CanSet() || v.Type() == reflect.TypeFor[time.Time]() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(evil)
	case reflect.Bool:
		v.SetBool(on)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), on, depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), on, depth+1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, on, depth+1)
		fill(value, on, depth+1)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), on, depth+1)
		}
	}
}

func filled[T any](on bool) T {
	var v T
	fill(reflect.ValueOf(&v).Elem(), on, 0)
	return v
}

// What others chose begins no line, and steers no terminal: not in any answer, and not in the log.
func TestForeignText(t *testing.T) {
	for _, on := range []bool{false, true} {
		for name, print := range map[string]func(io.Writer){
			"status":  func(w io.Writer) { Status(w, ptrTo(filled[api.Status](on)), nil, 0) },
			"groups":  func(w io.Writer) { StatusOf(w, ptrTo(filled[api.Status](on))) },
			"orphans": func(w io.Writer) { Orphans(w, filled[api.Status](on).Orphans) },
			"explain": func(w io.Writer) { Explanation(w, ptrTo(filled[inspect.Explanation](on))) },
			"history": func(w io.Writer) { History(w, filled[[]journal.Entry](on), true) },
			"moves": func(w io.Writer) {
				entries := filled[[]journal.Entry](on)
				entries[0].Changes[0].Old = "y"
				History(w, entries, true)
			},
			"reply": func(w io.Writer) {
				r := filled[api.Reply](on)
				Reply(w, w, &r, api.Request{Verb: "apply"})
			},
			"verify":   func(w io.Writer) { Verified(w, filled[[]verify.Reading](on)) },
			"probe":    func(w io.Writer) { Probed(w, filled[[]verify.Result](on)) },
			"measured": func(w io.Writer) { ProbePlan(w, filled[verify.Plan](on), on) },
			"import":   func(w io.Writer) { Remarks(w, "left", filled[[]convert.Remark](on)) },
			"advice":   func(w io.Writer) { Advice(w, ptrTo(filled[advise.Report](on)), true) },
			"error":    func(w io.Writer) { Error(w, &api.Error{Err: errText(evil)}) },
			"log": func(w io.Writer) {
				slog.New(slog.NewTextHandler(Printable(w, 0), nil)).Warn(evil, "process", evil)
			},
		} {
			var out bytes.Buffer
			print(&out)
			if out.Len() == 0 {
				t.Errorf("%s prints nothing", name)
			}
			for line := range strings.Lines(out.String()) {
				if strings.HasPrefix(line, "INTERRUPTED: evil") || strings.ContainsAny(line, "\u202e\x1b\u2028\x7f") {
					t.Errorf("%s prints %q", name, line)
				}
			}
			if text := out.String(); !strings.Contains(text, `\u202e`) && name != "error" {
				t.Errorf("%s does not show what was chosen:\n%s", name, text)
			}
		}
	}
}

type errText string

func (e errText) Error() string { return string(e) }

func ptrTo[T any](v T) *T { return &v }

// JSON holds what others chose as escapes, and a program reads it as it was.
func TestForeignTextInJSON(t *testing.T) {
	var out bytes.Buffer
	e := filled[inspect.Explanation](true)
	if err := JSON(&out, ExplanationView(&e)); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\u202e\x1b\u2028\x7f") || !strings.Contains(out.String(),
		`"comm": "x\nINTERRUPTED: evil\t\u202e\u001b[2J\u2028\u007f"`) {
		t.Error(out.String())
	}
	out.Reset()
	if err := JSON(&out, "ß \U000e0001 \u00a0<"); err != nil || out.String() != `"ß \udb40\udc01 \u00a0\u003c"`+"\n" {
		t.Errorf("%s, %v", &out, err)
	}
}
