package state

import (
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"testing"
	"time"

	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

func TestSources(t *testing.T) {
	s, err := journal.Open(t.TempDir(), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lock("test", "test"); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Save(journal.VersionName(3), []policy.Source{{Path: "a"}}); err != nil {
		t.Fatal(err)
	}
	if sources, err := Sources(s, 3); err != nil || len(sources) != 1 {
		t.Errorf("revision 3: %v, %v", sources, err)
	}
	if _, err := Sources(s, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("revision 4: %v", err)
	}
}

// Each row has a name and a place of its own, and says what is lost with it. What ends with the boot is empty in the
// next one.
func TestTable(t *testing.T) {
	samples := map[string]string{
		DocPins: `[{"boot":"a"}]`, DocFreezes: `[{"boot":"a"}]`, DocConflicts: `[{"boot":"a"}]`,
		DocNetwork: `{"boot":"a","slots":{"x":1}}`,
	}
	names, places := map[string]bool{}, map[any]bool{}
	var all Documents
	for _, row := range Table {
		place := row.Content(&all)
		if names[row.Name] || places[place] || row.Lost == "" {
			t.Errorf("%s: twice, or without a word of what is lost with it", row.Name)
		}
		names[row.Name], places[place] = true, true
		if !row.Boot {
			continue
		}
		var d Documents
		if err := json.Unmarshal([]byte(samples[row.Name]), row.Content(&d)); err != nil {
			t.Fatalf("%s: %v", row.Name, err)
		}
		moment := Moment{Boot: "a", Now: time.Now(), Alive: func(procfs.ID) bool { return true }}
		size := func() int { return reflect.Indirect(reflect.ValueOf(row.Content(d.Prune(moment)))).Len() }
		if row.Name == DocNetwork {
			size = func() int { return len(d.Prune(moment).Network.Slots) }
		}
		if size() != 1 {
			t.Errorf("%s is gone in its own boot", row.Name)
		}
		if moment.Boot = "b"; size() != 0 {
			t.Errorf("%s is still there in the next boot", row.Name)
		}
	}
}
