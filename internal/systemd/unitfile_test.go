package systemd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/systemdfake"
)

// What a unit's files say, in the order in which it counts, and what of it wins over a property.
func TestFileSettings(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client, err := systemd.Connect(t.Context(), m.Options())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for file, text := range map[string]string{
		"usr/lib/systemd/system/a-b@.service":              "[Service]\nMemoryMax=1G\nExecStart=/bin/sleep \\\n  9\n",
		"etc/systemd/system/a-b@.service.d/override.conf":  "[Service]\n# MemoryMax=2G\nMemoryMax=3G\n",
		"usr/lib/systemd/system/service.d/10-all.conf":     "[Service]\nTasksMax=7\n",
		"run/systemd/system/a-.service.d/zz.conf":          "[Service]\nTasksMax=8\n",
		"etc/systemd/system/a-b@c.service.d/zz.conf":       "[Service]\nTasksMax=9\n",
		"etc/systemd/system/a-b@c.service.d/notes.txt":     "TasksMax=1\n",
		"etc/systemd/system/other.service.d/override.conf": "[Service]\nMemoryMax=9G\n",
	} {
		at := filepath.Join(m.Root(), file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	short := func(all []systemd.FileSetting, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		var words []string
		for _, s := range all {
			if s.Setting != "ExecStart" {
				words = append(words, s.Setting+"="+s.Value)
			}
		}
		return strings.Join(words, " ")
	}
	overrides := []systemd.Override{{Path: "/etc/systemd/system.control/a-b@c.service.d/50-MemoryMax.conf",
		Text: []byte("[Service]\nMemoryMax=5G\n")}}
	if got := short(client.FileSettings("a-b@c.service", overrides)); got != "MemoryMax=1G TasksMax=7 MemoryMax=5G "+
		"MemoryMax=3G TasksMax=9" {
		t.Errorf("files say %s", got)
	}
	if got := short(client.Later("a-b@c.service")); got != "MemoryMax=3G TasksMax=9" {
		t.Errorf("later ones say %s", got)
	}
}

// Lines are joined as systemd joins them: a comment between them belongs to neither.
func TestFileSettingsOfContinuedLines(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	const text = "[Service]\nExecStart=/bin/sleep \\\n# not a part \\\n  ; nor this\n  9\nMemoryMax=1G\n" +
		"# a comment goes on nowhere \\\nTasksMax=7\nEnvironment=A=\\\\\nCPUWeight=3\n[X-Other]\nTasksMax=8\n"
	at := filepath.Join(m.Root(), "etc/systemd/system/a.service")
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	all, err := client.FileSettings("a.service", nil)
	if err != nil {
		t.Fatal(err)
	}
	const file = "/etc/systemd/system/a.service"
	want := []systemd.FileSetting{
		{Setting: "ExecStart", Value: "/bin/sleep  9", File: file}, {Setting: "MemoryMax", Value: "1G", File: file},
		{Setting: "TasksMax", Value: "7", File: file}, {Setting: "Environment", Value: `A=\\`, File: file},
		{Setting: "CPUWeight", Value: "3", File: file},
	}
	if !slices.Equal(all, want) {
		t.Errorf("files say %q, want %q", all, want)
	}
}

// A line is where it begins, in whatever way lines end.
func TestUnitLines(t *testing.T) {
	for text, want := range map[string][]string{
		"":                           nil,
		"\n \n#x\n;y\n":              nil,
		"  a=1 \r\n\tb\n":            {"2 a=1", "9 b"},
		"a=1 \\\n\n b=2":             {"0 a=1", "8 b=2"}, // an empty line ends it
		"a=1 \\":                     {"0 a=1"},
		"a=1\\ \nb=2":                {"0 a=1\\", "6 b=2"},
		"a=1 \\\r\n  # c\r\n 2\r\nb": {"0 a=1  2", "18 b"},
	} {
		var got []string
		for offset, line := range systemd.UnitLines(text) {
			got = append(got, fmt.Sprintf("%d %s", offset, line))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"300M": 300 << 20, "1.5G": 3 << 29, "4096": 4096, "25%": 256,
		"infinity": -1, "": -1, "x": -1, "-1": -1, "9E": -1} {
		if n, ok := systemd.ParseBytes(text, 1024); ok != (want >= 0) || ok && n != want {
			t.Errorf("%q: %d, %v; want %d", text, n, ok, want)
		}
	}
}
