package neighbour

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"bulkhead/internal/bench/process"
)

// ExporterOptions say how an exporter is scraped.
type ExporterOptions struct {
	For, Every time.Duration
	URL        string
	DSN        string // for the exporter, in DATA_SOURCE_NAME of its environment
}

// answerTime is how long an exporter may take until it listens, and to answer.
var answerTime = 10 * time.Second

// Scrape starts an exporter and asks it for its figures again and again, as a Prometheus does, until the time is up or
// ctx is done. Both are a good end. An exporter that ends, or that does not answer, is an error.
func Scrape(ctx context.Context, o ExporterOptions, command []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, min(o.For, maxHogTime))
	defer cancel()
	n := process.NewSupervisor()
	defer func() { err = errors.Join(err, n.Close()) }()
	var said bytes.Buffer
	spec := process.Spec{Args: command, Stdout: &said, Stderr: &said}
	if o.DSN != "" {
		spec.Env = []string{"DATA_SOURCE_NAME=" + o.DSN}
	}
	child, err := n.Start(spec)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: answerTime}
	answered, began := false, time.Now()
	for {
		scraped := scrapeOnce(ctx, &client, o.URL)
		switch {
		case ctx.Err() != nil:
			return nil
		case scraped == nil:
			answered = true
		case answered || time.Since(began) > answerTime:
			return fmt.Errorf("scrape %s: %w", command[0], scraped)
		}
		wait := o.Every
		if !answered {
			wait = 50 * time.Millisecond
		}
		select {
		case <-child.Done:
			return fmt.Errorf("scrape %s: it ended: %w\n%s", command[0], child.Err,
				process.LastLines(said.String(), 5))
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// scrapeOnce reads one answer to its end.
func scrapeOnce(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	err = errors.Join(err, answer.Body.Close())
	if answer.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(answer.Status))
	}
	return err
}
