// Package state owns the documents of the state directory: what is applied, set, released, moved by hand, frozen or on
// trial, and what units and interfaces had before bulkhead. Table lists them all, with their types, what ends them, and
// what is lost when one is damaged.
//
//	d, err := state.Load(store)                    // what each pass needs
//	d.Prune(state.Moment{Boot: boot, Now: now, Alive: host.Alive})
//
//	d, err := state.Load(store, state.DocTrial)    // one alone
//
// Load reads without a lock. Save and Mend need the lock of the store. Documents are values of their reader.
package state
