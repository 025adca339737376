package steprecord

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRecord(t *testing.T) {
	type record struct{ Step string }
	file := filepath.Join(t.TempDir(), "made", "a.json")
	if rec, err := Load[record](file); rec != nil || err != nil {
		t.Fatalf("there is none: %v, %v", rec, err)
	}
	for _, step := range []string{"one", "two"} {
		if err := Save(file, &record{step}); err != nil {
			t.Fatal(err)
		}
		if rec, err := Load[record](file); err != nil || rec.Step != step {
			t.Errorf("of %q it reads %v, %v", step, rec, err)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others than root may read it: %v, %v", info, err)
	}
	if err := os.WriteFile(file, []byte(`{"Step`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load[record](file); err == nil {
		t.Error("half of one is read")
	}
	for range 2 {
		if err := Remove(file); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if _, err := os.Lstat(file); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}
