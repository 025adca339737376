package agent

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/journal"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// maxRequest bounds what root may send, a policy with all its includes, and maxOthers what others may.
const (
	maxRequest = 32 << 20
	maxOthers  = 64 << 10
)

// answer is what travels back over the socket.
type answer struct {
	State     string        `json:"state,omitempty"` // the agent's state directory, for hello
	Knows     []string      `json:"knows,omitempty"` // api.Known, for hello
	Reply     *api.Reply    `json:"reply,omitempty"`
	Status    *api.Status   `json:"status,omitempty"`
	Placed    *api.PlacedAt `json:"placed,omitempty"`
	Unit      string        `json:"unit,omitempty"` // with Forbidden, the answer to forbidden
	Forbidden []string      `json:"forbidden,omitempty"`
	// Each of these is the answer to the request of its name.
	Sample     *observe.Sample   `json:"sample,omitempty"`
	Collectors []observe.Reading `json:"collectors,omitempty"`
	Record     *record.Reach     `json:"record,omitempty"`
	History    []journal.Entry   `json:"history,omitempty"`
	Error      *wireError        `json:"error,omitempty"`
}

// wireError is an error with everything the client needs to say it as if it had happened there.
type wireError struct {
	Code     api.Code        `json:"code"`
	Message  string          `json:"message"`
	Hint     string          `json:"hint,omitempty"`
	Problems policy.Problems `json:"problems,omitempty"`
	Refusals []plan.Refusal  `json:"refusals,omitempty"`
}

func write(w http.ResponseWriter, a answer) { send(w, encode(a)) }

// encode is an answer as it travels.
func encode(a answer) []byte {
	text, err := json.Marshal(a)
	if err != nil {
		text, _ = json.Marshal(answer{Error: &wireError{Code: api.CodeFailed,
			Message: "the answer cannot be written: " + err.Error()}})
	}
	return text
}

// send sends an answer; a client that does not read it loses the connection.
func send(w http.ResponseWriter, text []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// onWire makes an error ready to travel.
func onWire(err error) *wireError {
	if err == nil {
		return nil
	}
	e := &wireError{Code: api.CodeOf(err), Message: err.Error(), Hint: api.HintOf(err)}
	var problems policy.Problems
	if errors.As(err, &problems) {
		e.Problems = problems
	}
	var refused *apply.RefusedError
	if errors.As(err, &refused) {
		e.Refusals = refused.Refusals
	}
	return e
}

// err gives back the error that travelled.
func (e *wireError) err() error {
	switch {
	case e == nil:
		return nil
	case len(e.Problems) > 0:
		return e.Problems
	case len(e.Refusals) > 0:
		return &apply.RefusedError{Refusals: e.Refusals}
	}
	return &api.Error{Code: e.Code, Err: errors.New(e.Message), Hint: e.Hint}
}

// answerTime is how long a client may take to read an answer.
const answerTime = 10 * time.Second
