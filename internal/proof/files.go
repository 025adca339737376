package proof

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFiles writes the result into a directory: NAME.json for machines, NAME.html for people, and its plots as
// NAME-….svg.
func (r *Result) WriteFiles(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	var page bytes.Buffer
	if err := r.WritePage(&page); err != nil {
		return err
	}
	files := map[string][]byte{r.Scenario + ".json": append(text, '\n'), r.Scenario + ".html": page.Bytes()}
	for name, picture := range r.Pictures() {
		files[r.Scenario+"-"+name+".svg"] = []byte(picture + "\n")
	}
	for name, text := range files {
		if err := replace(filepath.Join(dir, name), text); err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
	}
	return nil
}

// replace writes a file whole or not at all.
func replace(path string, text []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, text, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
