// Package wire is what travels over the agent's socket, as its server and its client know it: HTTP with JSON.
package wire

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/journal"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// MaxRequest bounds what root may send, a policy with all its includes, and MaxOthers what others may.
const (
	MaxRequest = 32 << 20
	MaxOthers  = 64 << 10
)

const (
	// AnswerTime is how long a client may take to read an answer.
	AnswerTime = 10 * time.Second
	// WatchTime is how long somebody who watches waits for a new sample at most.
	WatchTime = 10 * time.Second
)

// JSON is the media type of an Answer.
const JSON = "application/json"

// RootOnly is what the name of the socket ends in that stays root's: nobody else can fill its queue.
const RootOnly = ".root"

// Entry is a process that asks to be put into a group before it runs a command.
type Entry struct {
	Group   string `json:"group"`
	Command string `json:"command"`
	By      string `json:"by,omitempty"` // of root: on behalf of whom
}

// Answer is what travels back over the socket.
type Answer struct {
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
	Error      *Error            `json:"error,omitempty"`
}

// Error is an error with everything the client needs to say it as if it had happened there.
type Error struct {
	Code     api.Code        `json:"code"`
	Message  string          `json:"message"`
	Hint     string          `json:"hint,omitempty"`
	Problems policy.Problems `json:"problems,omitempty"`
	Refusals []plan.Refusal  `json:"refusals,omitempty"`
}

// Write answers.
func Write(w http.ResponseWriter, a Answer) { Send(w, JSON, Encode(a)) }

// Encode is an answer as it travels.
func Encode(a Answer) []byte {
	text, err := json.Marshal(a)
	if err != nil {
		text, _ = json.Marshal(Answer{Error: &Error{Code: api.CodeFailed,
			Message: "the answer cannot be written: " + err.Error()}})
	}
	return text
}

// Send sends an answer of a media type; a client that does not read it loses the connection.
func Send(w http.ResponseWriter, kind string, text []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(AnswerTime))
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
}

// ErrorOf makes an error ready to travel.
func ErrorOf(err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Code: api.CodeOf(err), Message: err.Error(), Hint: api.HintOf(err)}
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

// Err gives back the error that travelled.
func (e *Error) Err() error {
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
