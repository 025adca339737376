package memory

import (
	"context"
	"fmt"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// Said is a setting of a server that is about huge pages.
type Said struct {
	Setting string `json:"setting"` // "huge_pages", "huge_pages_status", "huge_pages_needed", "large_pages"
	Value   string `json:"value"`
	From    string `json:"from"` // the server, or the file or argument that has it
}

// SettingsOf gives the settings of an instance: in force, where login is not nil and the server answers within
// settings.AskTime, else as its option files and arguments have them. Why it was not asked is trouble.
func SettingsOf(ctx context.Context, h *host.Host, inst engine.Instance, login *dblogin.Login) (s settings.Settings,
	trouble error) {
	list, err := h.Proc.Processes(procfs.Options{PIDs: []int{inst.Main.PID}})
	if err != nil {
		return s, err
	}
	if len(list) == 0 || list[0].ID != inst.Main {
		return s, procfs.ErrExited
	}
	return settings.Of(ctx, h, inst, &list[0], login)
}

// SaidBy gives what settings of an instance say of huge pages.
func SaidBy(inst engine.Instance, s settings.Settings) (all []Said) {
	values := fact.Values{}
	s.Facts(inst, values)
	for _, name := range []string{"instance.huge_pages", "instance.huge_pages_status", "instance.large_pages"} {
		if v := values.Get(name); v.Unknown == "" {
			all = append(all, Said{strings.TrimPrefix(name, "instance."), fmt.Sprint(v.Is), v.From})
		}
	}
	if _, v := s.Huge(inst); v.Unknown == "" {
		all = append(all, Said{"huge_pages_needed", fmt.Sprint(v.Is), v.From})
	}
	return all
}

// Contradicts says where the maps of an instance show something else than the server says, "" where they agree. A
// setting that asks for huge pages is no promise: PostgreSQL and InnoDB go on without them when the pool is too small.
func (i *Instance) Contradicts(said []Said) string {
	pool := int64(0)
	for _, p := range i.Pages {
		pool += p.Mapped
	}
	for _, s := range said {
		asks := s.Setting == "huge_pages" && (s.Value == "on" || s.Value == "try") ||
			s.Setting == "large_pages" && s.Value == "true" || s.Setting == "huge_pages_status" && s.Value == "on"
		switch {
		case asks && pool == 0 && s.Value != "try":
			return fmt.Sprintf("it does not use huge pages, although %s is %s (%s): the pool was too small, or it may "+
				"not lock memory, when it started", s.Setting, s.Value, s.From)
		case asks && pool == 0:
			return fmt.Sprintf("it does not use huge pages: %s is try (%s), and the pool was too small when it started",
				s.Setting, s.From)
		case s.Setting == "huge_pages_status" && s.Value == "off" && pool > 0:
			return fmt.Sprintf("%s is off (%s), but its maps show pages of a pool", s.Setting, s.From)
		}
	}
	return ""
}
