package reconcile

import (
	"context"
	"errors"
	"time"

	"bulkhead/internal/transaction"
)

// barTime is how long a group is left out before it is tried again.
const barTime = 5 * time.Minute

// bar leaves a group out of the looks for a while. One whose memory has not fallen yet rests for fallTime: meanwhile
// others change the host, and the other such groups rest, too. One that had no time, as another group of the same pass
// took it, has the next one for itself.
func (m *memory) bar(group string, revision int, cause error) {
	if m.barred == nil {
		m.barred = map[string]bar{}
	}
	b := bar{revision: revision, until: time.Now().Add(barTime), cause: cause}
	if waited, falls := transaction.StillFalls(cause); falls {
		b.until, b.falls = time.Now().Add(fallTime), true
		m.rest(b.until, waited < fallTime/2)
	}
	m.barred[group] = b
}

// rest has the groups whose memory is on its way down rest until a time, and longer where it is the turn of another.
func (m *memory) rest(until time.Time, another bool) {
	for group, b := range m.barred {
		if !b.falls {
			continue
		}
		if b.until.Before(until) {
			b.until = until
		}
		if another {
			b.until = b.until.Add(2 * fallTime)
		}
		m.barred[group] = b
	}
}

// falls says whether the memory of a group is on its way down.
func (m *memory) falls() bool {
	for _, b := range m.barred {
		if b.falls {
			return true
		}
	}
	return false
}

// goesOn says whether a look is to go on with a group whose memory is on its way down.
func (m *memory) goesOn(now time.Time) bool {
	for _, b := range m.barred {
		if b.falls && now.After(b.until) {
			return true
		}
	}
	return false
}

// fallTime is for how long one pass of the agent's loop waits for memory to fall: new processes wait as long for their
// groups, and whoever wants to change the host, who gives up after 5 s (transaction.DefaultLockWait).
const fallTime = 2 * time.Second

// Impatient has what one pass of the agent's loop does wait no longer than fallTime for memory to fall. The next passes
// go on, until it has fallen or the time that the policy gives it is over.
func Impatient(ctx context.Context, c *Reconciler) context.Context {
	return transaction.Impatient(ctx, &c.memory.waits, fallTime)
}

// stillBarred gives the groups that are left out of this look, and says why.
func (m *memory) stillBarred(revision int) (groups []string, said error) {
	for g, b := range m.barred {
		if b.revision != revision || time.Now().After(b.until) {
			delete(m.barred, g)
			continue
		}
		groups, said = append(groups, g), errors.Join(said, transaction.LeftOut(g, b.cause))
	}
	return groups, said
}
