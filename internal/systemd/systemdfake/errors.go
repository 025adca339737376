package systemdfake

import (
	"fmt"

	"github.com/godbus/dbus/v5"
)

// fail makes an error reply in systemd's words.
func fail(name, format string, args ...any) *dbus.Error {
	return &dbus.Error{Name: name, Body: []any{fmt.Sprintf(format, args...)}}
}

func noSuchUnit(format, unit string) *dbus.Error {
	return fail("org.freedesktop.systemd1.NoSuchUnit", format, unit)
}

func invalid(format string, args ...any) *dbus.Error {
	return fail("org.freedesktop.DBus.Error.InvalidArgs", format, args...)
}

func readOnly(name string) *dbus.Error {
	return fail("org.freedesktop.DBus.Error.PropertyReadOnly", "Cannot set property %s, or unknown property.", name)
}

func must(err error) {
	if err != nil {
		panic("systemdfake: " + err.Error())
	}
}
