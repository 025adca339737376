package plan

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"bulkhead/internal/policy"
)

// Reason says what asks for a limit, who, and where that is written:
// "cpu.limit 4 cores, class standard, policy.yaml:12".
func Reason(s policy.Setting) string {
	parts := []string{describe(s)}
	if s.From != "" && s.From != "group" {
		parts = append(parts, s.From)
	}
	if s.Pos.File != "" {
		place := filepath.Base(s.Pos.File)
		if s.Pos.Line > 0 {
			place += fmt.Sprintf(":%d", s.Pos.Line)
		}
		parts = append(parts, place)
	}
	return strings.Join(parts, ", ")
}

// describe is a setting in words: "memory.max 8GiB (4%)", "io.read.bandwidth 50MB/s on /data".
func describe(s policy.Setting) string {
	text := string(s.Key)
	switch {
	case s.Value == nil:
	case s.Key == policy.KeyCPULimit:
		text += " " + s.Value.String() + " core" + map[bool]string{true: "",
			false: "s"}[s.Value == policy.Cores(policy.One)]
	default:
		text += " " + s.Value.String()
	}
	if s.Raw != "" {
		text += " (" + s.Raw + ")"
	}
	if on := cmp.Or(s.On, s.Dev); on != "" {
		text += " on " + on
	}
	if s.Why != "" {
		text += " (" + s.Why + ")"
	}
	return text
}
