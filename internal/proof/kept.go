package proof

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// MinRounds is how many rounds a result has that a document does not call short.
const MinRounds = 5

// maxKept is the most bytes of a result that is kept for a document; most have a third of it.
const maxKept = 64 << 10

// besides is the directory of what a document is made of, and of its pictures.
func besides(document string) string { return strings.TrimSuffix(document, filepath.Ext(document)) }

// keptAt is where a document's result of a scenario is kept.
func keptAt(document, scenario string) string {
	return filepath.Join(besides(document), scenario+".json.gz")
}

// Keep keeps what became of a scenario beside a document, in place of what was kept of it. A failure is not kept, and
// why a scenario was left out only where no result of it is. What a document does not show is dropped: what groups and
// the machine used second by second, but for the last round where a shape judges swap.
func Keep(document string, o Outcome) error {
	path := keptAt(document, o.Scenario)
	_, err := os.Stat(path)
	switch {
	case o.Failed != "" || o.LeftOut != "" && err == nil:
		return nil
	case o.Result != nil && o.Result.Smoke:
		return fmt.Errorf("keep the result of %q: it is of a smoke run, whose figures say too little", o.Scenario)
	case o.Result != nil:
		r := *o.Result
		r.Arms = slices.Clone(r.Arms)
		for i := range r.Arms {
			r.Arms[i].Rounds = slices.Clone(r.Arms[i].Rounds)
			for j := range r.Arms[i].Rounds {
				if swaps(&r) && j == len(r.Arms[i].Rounds)-1 {
					continue
				}
				r.Arms[i].Rounds[j].Groups, r.Arms[i].Rounds[j].Host = nil, nil
			}
		}
		o.Result = &r
	}
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err := errors.Join(json.NewEncoder(z).Encode(o), z.Close()); err != nil {
		return fmt.Errorf("keep the result of %q: %w", o.Scenario, err)
	}
	if b.Len() > maxKept {
		return fmt.Errorf("keep the result of %q: it has %s, more than %s: measure fewer rounds, or shorter ones",
			o.Scenario, BytesText(int64(b.Len())), BytesText(maxKept))
	}
	err = os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = replace(path, b.Bytes())
	}
	if err != nil {
		return fmt.Errorf("keep the result of %q: %w", o.Scenario, err)
	}
	return nil
}

// Text is the text that a scenario has now.
type Text struct {
	Scenario           string
	Document           string // the experiment that it repeats: "E1"
	Reports, Mechanism string // as those of a result
	Digest             string
}

// entry is what a document has of a scenario; neither a result nor why there is none, where nothing is kept.
type entry struct {
	Outcome
	Text
}

// kept gives what is kept beside a document of some scenarios, in their order.
func kept(document string, texts []Text) (all []entry, err error) {
	for _, t := range texts {
		path := keptAt(document, t.Scenario)
		o, err := readOutcome(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if o.Scenario != "" && o.Scenario != t.Scenario {
			return nil, fmt.Errorf("read result %q: it is of %q", path, o.Scenario)
		}
		all = append(all, entry{o, t})
	}
	return all, nil
}

// maxResult is more than any result has: a second of an arm is some hundred bytes.
const maxResult = 256 << 20

// ReadFile reads a result that WriteFiles or Keep wrote.
func ReadFile(path string) (*Result, error) {
	o, err := readOutcome(path)
	if err == nil && o.Result == nil {
		err = fmt.Errorf("read result %q: it holds no arm of a scenario", path)
	}
	return o.Result, err
}

// readOutcome reads what Keep wrote, or a result.
func readOutcome(path string) (o Outcome, err error) {
	f, err := os.Open(path)
	if err != nil {
		return o, fmt.Errorf("read result: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var from io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if from, err = gzip.NewReader(f); err != nil {
			return o, fmt.Errorf("read result %q: %w", path, err)
		}
	}
	text, err := io.ReadAll(io.LimitReader(from, maxResult))
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err == nil && o.Result == nil && o.LeftOut == "" {
		o.Result = new(Result)
		err = json.Unmarshal(text, o.Result)
	}
	if err == nil && o.Result != nil && (o.Result.Scenario == "" || len(o.Result.Arms) == 0) {
		err = errors.New("it holds no arm of a scenario")
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("read result %q: %w", path, err)
	}
	return o, nil
}

// Wanting says what is to be measured again for a document: scenarios without a result, those whose text, by its
// digest, is another than that of the result, and those of fewer than MinRounds.
func Wanting(document string, texts []Text) (all []string, err error) {
	entries, err := kept(document, texts)
	for _, e := range entries {
		if why := e.wanting(); why != "" && e.LeftOut == "" { // else this machine has no result
			all = append(all, e.Text.Scenario+": "+why)
		}
	}
	return all, err
}

// wanting is why a scenario is to be measured again, "" is not at all.
func (e entry) wanting() string {
	if e.Result == nil {
		return "no result is kept"
	}
	var all []string
	if e.Result.Digest != e.Digest {
		all = append(all, "text changed since")
	}
	if e.Result.Rounds < MinRounds {
		all = append(all, fmt.Sprintf("fewer than %d rounds", MinRounds))
	}
	return strings.Join(all, ", ")
}
