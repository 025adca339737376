package advice

import (
	"strings"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/tunable/optionfile"
)

// placesOf finds where settings of instances can stand in option files of bulkhead's own.
func placesOf(h *host.Host) func(instance, name, value string) settings.Place {
	return func(instance, name, value string) settings.Place {
		places, err := settings.Places(h, []string{instance}, name, value)
		if err != nil {
			return settings.Place{Why: err.Error()}
		}
		return places[instance]
	}
}

// option is what can be set of a finding about a setting of a database server: in a file that it reads, where one value
// alone loses no data. What a server that runs has is set by whoever may log in to it.
func (t tuning) option(f advise.Finding, on settable) tuning {
	var left []string
	for _, instance := range f.On {
		p := on.place(instance, f.Change.Key, f.Change.Value)
		if p.File != "" {
			t.set(optionfile.Prefix+p.File+"/"+f.Change.Key, f.Change.Value, on)
		} else if p.Why != "" {
			left = append(left, p.Why)
		}
	}
	if len(t.Settings) == 0 {
		t.ByHand = strings.Join(append([]string{changeOf(f.Change)}, left...), ": ")
		return t
	}
	t.Besides = append(t.Besides, left...)
	if global := optionfile.SetGlobal(f.Change.Key, f.Change.Value); global != "" {
		t.Besides = append(t.Besides, global+" gives it to the server that runs: bulkhead's login is for questions")
	}
	return t
}
