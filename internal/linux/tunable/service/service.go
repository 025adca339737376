// Package service has the actuators of settings of services of systemd (systemd.exec(5), systemd.service(5)) that only
// a file holds: limits of processes, the order of the OOM killer, timeouts. They stand in a drop-in of bulkhead's own,
// and limits are given to the main process that runs, too (prlimit(2)). No service is restarted.
package service

import (
	"bulkhead/internal/change"
)

// Actuators are those of the kinds of this package.
func (h Host) Actuators() change.Actuators {
	if h.Systemd == nil {
		h.Systemd = mute{}
	}
	return change.Actuators{KindSetting: Settings{h}, KindLimit: Limits{h}}
}
