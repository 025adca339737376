// Package observetest gives tests a sample with figures of every row of the table.
package observetest

import (
	_ "embed"
	"encoding/json"
	"testing"

	"bulkhead/internal/observe"
)

//go:embed sample.json
var sample []byte

// Sample is the sample. Each call gives one of its own, which the test may change.
func Sample(t testing.TB) *observe.Sample {
	t.Helper()
	s := &observe.Sample{}
	if err := json.Unmarshal(sample, s); err != nil {
		t.Fatal(err)
	}
	return s
}
