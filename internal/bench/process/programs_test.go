package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"newname", "oldname"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	found, err := Find([]Program{{Name: "newname", Package: "a"}, {Name: "newer", Package: "b", Older: "oldname"}})
	if err != nil || found["newname"] != filepath.Join(dir, "newname") ||
		found["newer"] != filepath.Join(dir, "oldname") {
		t.Errorf("found %v, %v", found, err)
	}
	_, err = Find([]Program{{Name: "newname", Package: "a"}, {Name: "absent1-x", Package: "b"},
		{Name: "absent2-x", Package: "b"}, {Name: "absent3-x", Package: "c"}})
	var required *RequirementError
	if !errors.As(err, &required) {
		t.Fatalf("error is %v", err)
	}
	if !strings.Contains(required.Error(), "absent1-x, absent2-x, absent3-x") ||
		required.Hint != "apt-get install --no-install-recommends b c" {
		t.Errorf("it says %q, hint %q: want every program and each package once", required, required.Hint)
	}
}

func TestLastLines(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{{"a\nb\nc\n", 2, "b\nc"}, {"a", 5, "a"}, {strings.Repeat("x\n", 100), 3, "x\nx\nx"}} {
		if got := LastLines(tt.text, tt.n); got != tt.want {
			t.Errorf("last %d lines of %q are %q", tt.n, tt.text, got)
		}
	}
}
