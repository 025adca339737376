package unitname

import (
	"os/exec"
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "",
		"mysql23761":         "mysql23761",
		"a-b":                `a\x2db`,
		"a/b":                "a-b",
		".hidden":            `\x2ehidden`,
		"a.b":                "a.b",
		"a_b:c":              "a_b:c",
		`a\b`:                `a\x5cb`,
		"at@home":            `at\x40home`,
		"ü":                  `\xc3\xbc`,
		"Hallöchen, Meister": `Hall\xc3\xb6chen\x2c\x20Meister`, // the example of systemd-escape(1)
	} {
		if got := Escape(text); got != want {
			t.Errorf("Escape(%q) = %q, want %q", text, got, want)
		}
		if got, err := Unescape(want); err != nil || got != text {
			t.Errorf("Unescape(%q) = %q, %v, want %q", want, got, err, text)
		}
	}
	for _, bad := range []string{`\`, `\x`, `\x2`, `\y2d`, `\xzz`, `a\x2`} {
		if got, err := Unescape(bad); err == nil {
			t.Errorf("Unescape(%q) = %q, want an error", bad, got)
		}
	}
}

// The program itself, where it is installed, is asked for the same.
func TestEscapeIsSystemdsOwn(t *testing.T) {
	program, err := exec.LookPath("systemd-escape")
	if err != nil {
		t.Skip("systemd-escape(1) is not installed; TestEscape holds its example")
	}
	for _, text := range []string{"mysql23761", "a-b", "a/b", ".x", "ü b", `\`, "50%", "~+'\""} {
		out, err := exec.Command(program, "--", text).Output()
		if got := Escape(text); err != nil || got != strings.TrimSuffix(string(out), "\n") {
			t.Errorf("Escape(%q) = %q, systemd-escape gives %q, %v", text, got, out, err)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, text := range []string{"", "a-b/c", ".x", "\\x2d", "\x00\xff", "é"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name := Escape(text)
		if back, err := Unescape(name); err != nil || back != text {
			t.Errorf("%q escapes to %q, which unescapes to %q, %v", text, name, back, err)
		}
		if unit := name + ".service"; text != "" && len(unit) <= nameMax && CheckName(unit) != nil {
			t.Errorf("%q escapes to a name that is refused: %v", text, CheckName(unit))
		}
		object := ObjectPath(text)
		if unit, ok := UnitOfObject(object); !ok || unit != text {
			t.Errorf("%q has the object %q, which is %q, %v", text, object, unit, ok)
		}
		Unescape(text)            // whatever it is
		UnitOfObject(text)        //
		GroupOf("bulkhead", text) //
		SliceDir(text)            //
	})
}

func TestGroupUnits(t *testing.T) {
	for _, c := range []struct{ root, group, slice, dir, parent string }{
		{"bulkhead", "", "bulkhead.slice", "/bulkhead.slice", "-.slice"},
		{"bulkhead", "reports", "bulkhead-reports.slice", "/bulkhead.slice/bulkhead-reports.slice", "bulkhead.slice"},
		{"bulkhead", "mysql23761/backup", "bulkhead-mysql23761-backup.slice",
			"/bulkhead.slice/bulkhead-mysql23761.slice/bulkhead-mysql23761-backup.slice", "bulkhead-mysql23761.slice"},
		{"bulkhead", "scylla-helper", `bulkhead-scylla\x2dhelper.slice`,
			`/bulkhead.slice/bulkhead-scylla\x2dhelper.slice`, "bulkhead.slice"},
		{"", "reports", "bulkhead.reports.slice", "/bulkhead.reports.slice", "-.slice"},
		{"", "mysql23761/backup", "bulkhead.mysql23761-backup.slice",
			"/bulkhead.mysql23761.slice/bulkhead.mysql23761-backup.slice", "bulkhead.mysql23761.slice"},
		{"", "scylla-helper", `bulkhead.scylla\x2dhelper.slice`, `/bulkhead.scylla\x2dhelper.slice`, "-.slice"},
		{"my-root", "a_b.c", `my\x2droot-a_b.c.slice`, `/my\x2droot.slice/my\x2droot-a_b.c.slice`, `my\x2droot.slice`},
	} {
		slice, err := SliceName(c.root, c.group)
		if err != nil || slice != c.slice {
			t.Errorf("SliceName(%q, %q) = %q, %v, want %q", c.root, c.group, slice, err, c.slice)
		}
		if group, ok := GroupOf(c.root, slice); !ok || group != c.group {
			t.Errorf("GroupOf(%q) = %q, %v", slice, group, ok)
		}
		if dir, err := SliceDir(slice); err != nil || dir != c.dir {
			t.Errorf("SliceDir(%q) = %q, %v, want %q", slice, dir, err, c.dir)
		}
		if parent, err := ParentSlice(slice); err != nil || parent != c.parent {
			t.Errorf("ParentSlice(%q) = %q, %v, want %q", slice, parent, err, c.parent)
		}
	}
	for _, group := range []string{"a//b", "/a", "a/", strings.Repeat("x", 300)} {
		if name, err := SliceName("bulkhead", group); err == nil {
			t.Errorf("SliceName(%q) = %q, want an error", group, name)
		}
	}
	if name, err := KeeperName("bulkhead", ""); err == nil {
		t.Errorf("the root has the keeper %q, which is the agent's unit", name)
	}
	for _, unit := range []string{"", "other.slice", "bulkheadx.slice", "bulkhead-.slice", "bulkhead--a.slice",
		"bulkhead.socket", `bulkhead-\x61.slice`, `bulkhead-a\x2fb.slice`, "bulkhead"} {
		if group, ok := GroupOf("bulkhead", unit); ok {
			t.Errorf("GroupOf(%q) = %q, want none", unit, group)
		}
	}
	if name, err := SliceName("", ""); err == nil {
		t.Errorf("without a root group there is the slice %q above all groups", name)
	}
	for _, unit := range []string{"bulkhead.slice", "bulkhead.service", "bulkhead-a.slice", "bulkhead..slice",
		"other.a.slice"} {
		if group, ok := GroupOf("", unit); ok {
			t.Errorf("GroupOf(%q) without a root group = %q, want none", unit, group)
		}
	}
	if dir, err := SliceDir("-.slice"); dir != "/" || err != nil {
		t.Errorf("the root slice lies in %q, %v", dir, err)
	}
}

// Two groups never share a unit, and a unit says which group it stands for.
func TestGroupUnitsRoundTrip(t *testing.T) {
	name := rapid.StringMatching(`[a-zA-Z0-9][a-zA-Z0-9_.-]{0,12}`)
	groups := rapid.SliceOfN(name, 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		root, group := rapid.OneOf(rapid.Just(""), name).Draw(t, "root"), strings.Join(groups.Draw(t, "group"), "/")
		slice, err1 := SliceName(root, group)
		keeper, err2 := KeeperName(root, group)
		scope, err3 := ScopeName(root, group, "run-1")
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
		for unit, want := range map[string]string{slice: group, keeper: group, scope: group + "/run-1"} {
			if err := CheckName(unit); err != nil {
				t.Error(err)
			}
			if got, ok := GroupOf(root, unit); !ok || got != want {
				t.Errorf("%q stands for %q, %v, want %q", unit, got, ok, want)
			}
		}
		dir, err := SliceDir(slice)
		if err != nil || strings.Count(dir, "/") != len(strings.Split(path.Join(root, group), "/")) {
			t.Errorf("%q lies in %q, %v", slice, dir, err)
		}
	})
}

func TestCheckName(t *testing.T) {
	for _, good := range []string{"mysql.service", "mysqld@3306.service", "a-b.slice", "-.slice", `a\x20b.service`,
		"x.y.scope"} {
		if err := CheckName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "a", ".service", "a.exe", "a b.service", "ü.service", "a/b.service", "@1.service",
		"a@.service", "-a.slice", "a-.slice", "a--b.slice", strings.Repeat("x", 250) + ".service"} {
		if err := CheckName(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}
