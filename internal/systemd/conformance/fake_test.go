package conformance_test

import (
	"testing"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/conformance"
	"bulkhead/internal/systemd/systemdfake"
)

// modelHost is the model as a case sees it beside D-Bus.
type modelHost struct{ *systemdfake.Manager }

func (h modelHost) Read(group, file string) (string, error) { return h.ReadFile(group, file) }
func (h modelHost) Write(group, file, text string) error    { return h.WriteFile(group, file, text) }

func model(o systemdfake.Options, bus bool) func(*testing.T) conformance.Subject {
	return func(t *testing.T) conformance.Subject {
		m := systemdfake.New(t, o)
		options := m.Options()
		options.Bus = bus
		client, err := systemd.Connect(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		cgroups := o.Cgroups
		if cgroups == 0 {
			cgroups = 2
		}
		return conformance.Subject{
			Manager: client, Options: options, Name: "bhc1", Sleep: []string{"/bin/sleep", "1000"},
			Absent:  "/bin/no-such-program",
			Cgroups: cgroups, Host: modelHost{m}, Spawn: func(testing.TB) int { return m.Spawn() },
		}
	}
}

func TestModel(t *testing.T)           { run(t, systemdfake.Options{}, false) }
func TestModelOverTheBus(t *testing.T) { run(t, systemdfake.Options{}, true) }
func TestModelLegacy(t *testing.T)     { run(t, systemdfake.Options{Cgroups: 1}, false) }
func TestModel247(t *testing.T)        { run(t, systemdfake.Options{Version: "247.3-7+deb11u7"}, false) }
func TestModel257(t *testing.T)        { run(t, systemdfake.Options{Version: "257.9-1~deb13u1"}, false) }

func run(t *testing.T, o systemdfake.Options, bus bool) {
	t.Parallel()
	conformance.Run(t, model(o, bus))
}
