package agent

import (
	"context"

	"bulkhead/internal/systemd"
)

// watchSystemd asks for a full look when systemd has read its files again: it then writes every limit that it knows
// anew, over what others put into the kernel's files. It also does when it may have missed one.
func (a *Agent) watchSystemd(ctx context.Context) {
	if !systemd.Running("") {
		return
	}
	reasons := systemd.Watch(ctx, systemd.WatchOptions{
		Units: func(string) bool { return false }, // who starts and ends is told by the kernel
		Lost:  func(err error) { a.o.Log.Warn("systemd is not heard; it is tried again", "err", err) },
	})
	go func() {
		for r := range reasons {
			if r.Kind == systemd.ReloadEnded || r.Kind == systemd.Missed {
				a.Changed(nil)
			}
		}
	}()
}
