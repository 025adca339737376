// Command sbom says what a program is linked with: bulkhead.spdx.json, its bill of materials (SPDX 2.3), and
// licences.txt, the licences of the Go modules and of what is embedded, with their copyright notices.
//
//	MODCACHE=$(go env GOMODCACHE) GOROOT=$(go env GOROOT) sbom PROGRAM VERSION DIRECTORY
//
// The modules are those that the linker has written into the program, and their texts those of the module cache.
// SOURCE_DATE_EPOCH is the time of the document.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: sbom PROGRAM VERSION DIRECTORY")
	}
	parts, arch, err := linked(args[0])
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	text, err := json.MarshalIndent(bill(parts, args[1], arch, time.Unix(seconds, 0)), "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(args[2], "bulkhead.spdx.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[2], "licences.txt"), []byte(licences(parts)), 0o644)
}
