// Package observetest gives tests a sample with figures of every row of the table.
package observetest

import (
	_ "embed"
	"encoding/json"
	"fmt"
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

// Groups is the sample with so many groups that are like its first one, each of which uses so many disks.
func Groups(t testing.TB, groups, disks int) *observe.Sample {
	t.Helper()
	s := Sample(t)
	like := s.Groups[0]
	disk := like.Usage.IO[0]
	like.Usage.IO = nil
	for i := range disks {
		disk.Device = fmt.Sprint("300:", i)
		like.Usage.IO = append(like.Usage.IO, disk)
	}
	s.Groups = nil
	for i := range groups {
		like.Group = fmt.Sprint("mysql", 3306+i)
		s.Groups = append(s.Groups, like)
	}
	return s
}
