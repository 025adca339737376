package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// trouble is an error as the page shows it.
type trouble struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

func (of hint) trouble(err error) trouble { return trouble{err.Error(), of(err)} }

// errAsked says that a request is wrong.
var errAsked = errors.New("the request is wrong")

// errNothing says that there is no figure of what was asked for.
var errNothing = errors.New("nothing is recorded")

// hint says what to do about an error.
type hint func(error) string

// answer answers with JSON, or with an error.
func (of hint) answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if err != nil {
		code := http.StatusBadGateway
		switch {
		case errors.Is(err, errAsked):
			code = http.StatusBadRequest
		case errors.Is(err, errNothing):
			code = http.StatusNotFound
		case errors.Is(err, context.DeadlineExceeded):
			code = http.StatusGatewayTimeout
			err = fmt.Errorf("the record was not read within %s: choose a shorter time, or try again when fewer "+
				"people look", pastTime)
		}
		w.WriteHeader(code)
		v = of.trouble(err)
	}
	_ = json.NewEncoder(w).Encode(v)
}

// mostName is how long the name of a group may be that somebody asks for.
const mostName = 1024

// groupOf is the group that a request names; "" for none.
func groupOf(r *http.Request) (string, error) {
	name := r.URL.Query().Get("group")
	if len(name) > mostName {
		return "", fmt.Errorf("%w: the name of the group is too long", errAsked)
	}
	return name, nil
}

// moment reads a time in milliseconds of Unix time.
func moment(r *http.Request, name string) (time.Time, error) {
	text := r.URL.Query().Get(name)
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || ms > 1<<43 {
		return time.Time{}, fmt.Errorf("%w: %s is a time in milliseconds since 1970, not %q", errAsked, name, text)
	}
	return time.UnixMilli(ms).UTC(), nil
}
