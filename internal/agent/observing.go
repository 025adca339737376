package agent

import (
	"context"
	"errors"
	"net/http"

	"bulkhead/internal/agent/wire"
	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/sampling"
)

// newObserver makes what samples for the agent.
func (a *Agent) newObserver() *sampling.Observer {
	return sampling.NewObserver(sampling.Options{Host: a.control.Host, State: a.control.Store.Dir(), Self: a.self,
		Every: a.o.Sample, Log: a.o.Log, SLO: func() map[string]api.SLO { return a.slo.Told() },
		Tasks: func() (map[string]metrics.TaskStates, metrics.Loads) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.tasks, a.loads // neither is changed later
		}})
}

// self says what the agent did and costs.
func (a *Agent) self() (observe.Agent, error) {
	st := api.Status{}
	a.Fill(&st)
	m, err := a.control.Host.Proc.Memory(st.Agent.PID)
	a.mu.Lock()
	defer a.mu.Unlock()
	return observe.Agent{AgentStatus: st.Agent, CPU: cpuTime(), Memory: m.Anon + m.File + m.Shmem,
		Guarded: a.onTrial.Guarded, Confirms: a.onTrial.Waits, Undone: a.onTrial.Undone}, err
}

// see has the observer watch what the last full look saw.
func (a *Agent) see(ctx context.Context) {
	switch seen := a.control.Seen(); {
	case seen.View != nil:
		a.watched = sampling.Of(seen.View, seen.Tasks, seen.Revision)
		a.slo.Watch(ctx, seen.View)
	case seen.Rests:
		a.watched = sampling.Nothing(seen.Record)
		a.slo.Watch(ctx, nil)
	}
	a.observer.See(ctx, a.watched)
}

// samples answers with the last sample. Nothing is read for it. Who names the time of one waits for a newer one, or
// gets no more than its age while there is none. Who asks for figures gets those, and not the whole sample.
func (s *server) samples(w http.ResponseWriter, r *http.Request) {
	one := s.agent.observer.Asked(r, wire.WatchTime)
	if one == nil {
		wire.Write(w, wire.Answer{Error: &wire.Error{Code: api.CodeFailed,
			Message: "the agent has taken no sample yet",
			Hint:    "it takes the first one after its first look; ask again in a few seconds"}})
		return
	}
	if r.Header.Get("Accept") == figures.Type && !one.Same {
		wire.Send(w, figures.Type, figures.Of(one).Append(nil))
		return
	}
	wire.Write(w, wire.Answer{Sample: one})
}

// collectors says how collectors are switched and what they do.
func (s *server) collectors(w http.ResponseWriter, _ *http.Request) {
	wire.Write(w, wire.Answer{Collectors: s.agent.observer.Readings()})
}

// switchCollectors switches collectors, and answers what became of them.
func (s *server) switchCollectors(w http.ResponseWriter, r *http.Request) {
	who := peerOf(r)
	var change collect.Change
	if !who.root {
		wire.Write(w, wire.Answer{Error: &wire.Error{Code: api.CodeRefused, Message: "only root may switch collectors",
			Hint: "run it with sudo"}})
		return
	}
	if !read(w, r, &change) {
		return
	}
	err := s.agent.observer.Change(change)
	var unknown *collect.UnknownError
	switch {
	case errors.As(err, &unknown):
		err = &api.Error{Code: api.CodeUsage, Err: err, Hint: "`bulkhead collectors` lists them"}
	case err != nil:
		err = &api.Error{Code: api.CodeFailed, Err: err, Hint: "nothing was changed; see to the state directory"}
	default:
		s.agent.o.Log.Info("collectors were switched", "by", s.name(who, ""), "how", change.Verb,
			"collectors", change.Names, "for", change.For)
	}
	wire.Write(w, wire.Answer{Collectors: s.agent.observer.Readings(), Error: wire.ErrorOf(err)})
}

// record says what the record has.
func (s *server) record(w http.ResponseWriter, _ *http.Request) {
	reach, err := s.agent.observer.Record.Reach()
	wire.Write(w, wire.Answer{Record: &reach, Error: wire.ErrorOf(err)})
}

// segments gives segments of the record; to others than root to one at a time, as the newest is compressed for each.
func (s *server) segments(w http.ResponseWriter, r *http.Request) {
	if !peerOf(r).root {
		if !s.recordReader.TryLock() {
			wire.Write(w, wire.Answer{Error: &wire.Error{Code: api.CodeLocked,
				Message: "somebody else reads the record", Hint: "try again in a moment"}})
			return
		}
		defer s.recordReader.Unlock()
	}
	if err := s.agent.observer.Send(w, r, wire.AnswerTime); err != nil {
		wire.Write(w, wire.Answer{Error: wire.ErrorOf(err)})
	}
}
