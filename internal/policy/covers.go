package policy

import "strings"

// Covers says whether a group is one of some groups or below one; "" among these is the root group, below which all
// are.
func Covers(groups []string, group string) bool {
	for _, g := range groups {
		if g == "" || g == group || strings.HasPrefix(group, g+"/") {
			return true
		}
	}
	return false
}

// Released says whether a group, or one above it, was released; "" releases everything.
func Released(released map[string]bool, group string) bool {
	for g, on := range released {
		if on && Covers([]string{g}, group) {
			return true
		}
	}
	return false
}

// ScheduleNames are the names of schedules.
func ScheduleNames(all []Schedule) []string {
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names
}
