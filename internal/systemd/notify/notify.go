// Package notify tells the service manager that started this process how it does (sd_notify(3)).
package notify

import (
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// What a service says of itself (sd_notify(3)).
const (
	Ready    = daemon.SdNotifyReady
	Stopping = daemon.SdNotifyStopping
	Alive    = daemon.SdNotifyWatchdog
)

// Reloading says that a reload begins; Ready ends it. The time is there for Type=notify-reload (systemd 253).
func Reloading() string {
	return daemon.SdNotifyReloading + "\n" + strings.TrimSpace(daemon.SdNotifyMonotonicUsec())
}

// Saying is one line that `systemctl status` shows.
func Saying(text string) string { return "STATUS=" + strings.Join(strings.Fields(text), " ") }

// Send tells the service manager that started this process how it does, in one message. Without one it does nothing.
func Send(words ...string) error {
	if _, err := daemon.SdNotify(false, strings.Join(words, "\n")); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

// WatchdogTimeout is how long the service manager waits for the next Alive before it ends this process; 0 when it
// does not (WatchdogSec=).
func WatchdogTimeout() (time.Duration, error) {
	d, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0, fmt.Errorf("read the watchdog's time: %w", err)
	}
	return d, nil
}
