package systemd

import "context"

// ChangeDropIns writes and takes away drop-ins of ours and has systemd read its files again, all of it or nothing.
// Those that are so already are left alone; when none changes there is no reload. Nothing running moves: Slice= counts
// from the unit's next start on.
func (m *Manager) ChangeDropIns(ctx context.Context, want ...DropIn) error {
	var changes []fileChange
	for _, d := range want {
		path, text, err := m.dropIn(d)
		if err != nil {
			return err
		}
		before, err := ownFile(path)
		if err != nil {
			return &Error{Op: "write drop-in of", Unit: d.Unit, Cause: err,
				Hint: "move that file away if nobody needs it"}
		}
		changes = append(changes, fileChange{path, before, text})
	}
	return m.changeFiles(ctx, "write drop-ins", changes)
}
