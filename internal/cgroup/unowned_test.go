package cgroup

import "testing"

// What nobody owns any more is root's, with the modes that the kernel gives its files.
func TestUnowned(t *testing.T) {
	for text, want := range map[string]string{
		"54321:54330 0664": "0:0 0644",
		"0:54330 0775":     "0:0 0755",
		"0:0 0644":         "0:0 0644",
		"0:0 0700":         "0:0 0700", // made with another umask
		"cpu.shares 54321:54330 0664, cpu.stat 0:0 0444, force 1:1 " +
			"0220": "cpu.shares 0:0 0644, cpu.stat 0:0 0444, force 0:0 0200",
		"cgroup.event_control 0:0 0222": "cgroup.event_control 0:0 0222",
		"cgroup.event_control 0:0 0200, memory.pressure_level 0:0 " +
			"0000": "cgroup.event_control 0:0 0200, memory.pressure_level 0:0 0000",
		"not an owner": "not an owner",
	} {
		if got := Unowned(text); got != want {
			t.Errorf("Unowned(%q) = %q, want %q", text, got, want)
		}
	}
}
