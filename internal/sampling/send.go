package sampling

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// Send answers a request with the segments of the record between ?from= and ?to=, in milliseconds since 1970. A client
// may take so long for each part of it. After an error that came before the answer's begin another answer can be given;
// else it panics with http.ErrAbortHandler, so that its reader does not take it for whole.
func (o *Observer) Send(w http.ResponseWriter, r *http.Request, patience time.Duration) error {
	between := [2]time.Time{}
	for i, name := range []string{"from", "to"} {
		at, err := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		between[i] = time.UnixMilli(at)
	}
	segments, err := record.Open(o.directory, between[0], between[1])
	if err != nil {
		return err
	}
	defer segments.Close()
	w.Header().Set("Content-Type", record.SegmentsType)
	if _, err := io.Copy(patient{w, patience}, segments); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

type patient struct {
	to       http.ResponseWriter
	patience time.Duration
}

func (p patient) Write(b []byte) (int, error) {
	_ = http.NewResponseController(p.to).SetWriteDeadline(time.Now().Add(p.patience))
	return p.to.Write(b)
}

// Asked is the sample that a request is about: the last one. Of one that it has already, by the time in "unless", it
// gets the age alone. With a time in "after" it waits for a newer one, for so long at most. It is nil before the first.
func (o *Observer) Asked(r *http.Request, most time.Duration) *observe.Sample {
	if after, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64); err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), most)
		defer cancel()
		return o.Newer(ctx, time.Unix(0, after))
	}
	one := o.Last()
	if had, err := strconv.ParseInt(r.URL.Query().Get("unless"), 10, 64); err == nil && one != nil &&
		one.At.UnixNano() == had {
		return &observe.Sample{At: one.At, Age: one.Age, Every: one.Every, Same: true}
	}
	return one
}
