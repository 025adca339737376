package parse

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/policy"
)

// The time that a policy takes grows with its length: eight times the length take eight times as long, and at most
// twice that, whatever is wrong with it. CPU time is measured, so that a busy machine changes little; the better of two
// counts.
func TestTimeGrowsWithTheLength(t *testing.T) {
	repeat := func(begin, line, end string) func(int) string {
		return func(size int) string {
			var b strings.Builder
			b.WriteString("version: 1\n" + begin)
			for i := 0; b.Len() < size; i++ {
				b.WriteString(strings.ReplaceAll(line, "#", fmt.Sprint(i)))
			}
			return b.String() + end
		}
	}
	for name, text := range map[string]func(int) string{
		"groups":           repeat("groups:\n", "  g#: {cpu: {weight: 5}}\n", ""),
		"groups in a line": repeat("groups: {", "g#: {cpu: {weight: 5}}, ", "}\n"),
		"matches":          repeat("groups:\n  g:\n    match:\n", "    - {user: u#}\n", ""),
		"exceptions": repeat("groups:\n  g:\n    match:\n    - user: a\n      except:\n",
			"      - {exe: e#}\n", ""),
		"devices":         repeat("groups:\n  g:\n    io:\n", "    - {on: /dev/d#, weight: 5}\n", ""),
		"one device":      repeat("groups:\n  g:\n    io:\n", "    - {on: /dev/d, weight: 5}\n", ""),
		"interfaces":      repeat("groups:\n  g:\n    network:\n", "    - {on: eth#, egress: 1Mbit/s}\n", ""),
		"owners":          repeat("groups:\n  g:\n    owner:\n", "    - {user: u#, may: [freeze]}\n", ""),
		"classes":         repeat("classes:\n", "  c#: {cpu: {weight: 5}}\n", ""),
		"unknown classes": repeat("groups:\n", "  g#: {class: c#}\n", ""),
		"unknown keys":    repeat("", "k#: 1\n", ""),
		"keys twice":      repeat("", "k: 1\n", ""),
		"wrong values":    repeat("groups:\n", "  g#: {cpu: {weight: x}}\n", ""),
		"schedules": repeat("schedules:\n",
			"- {name: s#, when: '0 1 * * *', for: 1h, set: {g: {tasks: 5}}}\n", ""),
		"schedules of all": repeat("groups: {g: {}}\nschedules:\n- name: s\n  when: '0 1 * * *'\n  for: 1h\n"+
			"  set:\n", "    g#: {tasks: 5}\n", ""),
		"includes":           repeat("include:\n", "- f#.yaml\n", ""),
		"open lists":         repeat("groups: ", "[", "\n"),
		"open blocks":        repeat("groups: ", "{a: ", "\n"),
		"nested lists":       repeat("groups:\n", "- ", "a\n"),
		"anchors":            repeat("groups:\n", "  g#: &a# {cpu: {weight: 5}}\n", ""),
		"comments":           repeat("", "# a comment\n", "groups: {}\n"),
		"one long word":      repeat("groups: {", "abcdefgh", ": {}}\n"),
		"one long text":      repeat("groups: {g: {match: [{cmdline: '", "a b ", "'}]}}\n"),
		"a text of lines":    repeat("groups:\n  g:\n    match:\n    - cmdline: '", "a b\n          ", "'\n"),
		"question marks":     repeat("", "? ", "\n"),
		"flows of pairs":     repeat("groups: [", "a: b, ", "]\n"),
		"a literal block":    repeat("groups: |\n", "  text\n", ""),
		"CPUs":               repeat("groups: {g: {cpu: {cpus: '0", ",0-65535", "'}}}\n"),
		"regular expression": repeat("groups: {g: {match: [{cmdline: 'x", "(a|b)*", "'}]}}\n"),
	} {
		took := func(size int) time.Duration {
			best := time.Hour
			for range 2 {
				sources := []policy.Source{{Path: "p.yaml", Text: text(size)}}
				begin := cpuTime(t)
				_, err := Policy(sources)
				best = min(best, cpuTime(t)-begin)
				if err != nil {
					_ = err.Error()
				}
			}
			return best
		}
		small, big := took(1<<13), took(1<<16)
		t.Logf("%s: %s for 8 KiB, %s for 64 KiB", name, small.Round(time.Microsecond), big.Round(time.Microsecond))
		if big > 16*small+30*time.Millisecond {
			t.Errorf("%s: %s for 8 KiB and %s for 64 KiB", name, small, big)
		}
	}
}

// cpuTime is what this process has used so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
