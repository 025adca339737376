// Package sloloop keeps what databases are promised (`slo:` of the policy): every 5 s, and every second while a target
// is missed or a limit was changed just now, it gives the step function of package slo what was sampled of each of
// them, and has what that decides put in force as overrides that end by themselves. It reads nothing of the kernel;
// databases are asked by goroutines of its own.
//
// Watch, Tick and End are for one goroutine, the agent's loop. Told is safe for concurrent use.
package sloloop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/journal"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/top"
	"bulkhead/internal/policy"
	"bulkhead/internal/slo"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

const (
	// look is the time between two looks, and so that of a window; early is how much earlier one may come.
	look, early = slo.Look * time.Second, 200 * time.Millisecond
	// lasts is how long an override holds without being renewed, and renewed its age when that is done.
	lasts, renewed = time.Minute, 20 * time.Second
	// giveUp is how long it is tried to put something in force before that is forgotten.
	giveUp = slo.MissingLimit * time.Second
	// old is how old a sample may be.
	old = 15 * time.Second
	// quiet is the least time between two lines of the history that say what would be done.
	quiet = 10 * time.Minute
)

// Sampler is what samples for the loop.
type Sampler interface {
	Last() *observe.Sample
	// ReadNow has a collector read at once.
	ReadNow(p observe.Part)
}

// Options of the loops of a host.
type Options struct {
	Sampler Sampler
	// Squeeze has overrides laid over the policy in place of those before, and writes into the history.
	Squeeze func(ctx context.Context, want []state.Override, tell ...journal.Entry) error
	// Changed asks for a full look at the host, as limits were changed: samples tell them as of the last one.
	Changed func()
	// Without gives the groups of a view without what the loop has laid over the policy.
	Without func(v *transaction.View) []classify.Group
	// OnTrial says that a person's change is watched or waits to be confirmed: nothing is squeezed meanwhile.
	OnTrial func() bool
	// Guard starts what gives everything back when this process dies; nil for nothing.
	Guard func(ctx context.Context) (Guard, error)
	// Size is how many bytes the files below a directory have. It may take long.
	Size func(ctx context.Context, directory string) (int64, error)
	Log  *slog.Logger
}

// Guard gives everything back when this process dies. Gone is closed when it does so although this process lives,
// which gave no sign of life, and when it was ended itself.
type Guard interface {
	Gone() <-chan struct{}
	Done()
}

// Loops are those of all databases of a host.
type Loops struct {
	o       Options
	host    *host // as it was seen last
	all     map[string]*loop
	askers  map[string]*asker // by data source name
	read    *top.State        // the last two readings of each collector that looks have seen
	works   map[string]statements
	copies  map[string]*copying // by group
	start   time.Time           // of the seconds that steps are told
	changes map[string][]int    // of each group, over all databases
	put     []state.Override    // that are in force
	at      time.Time           // when they were put there, or renewed
	begun   bool
	trouble string          // why that failed the last time; "": it did not
	since   time.Time       // of the trouble
	tell    []journal.Entry // that the history is still to have
	guard   Guard

	mu   sync.Mutex // guards what follows
	told map[string]api.SLO
}

// loop is that of one database.
type loop struct {
	slo.Loop

	target target
	gone   bool // the policy promises it nothing any more
	state  slo.State
	told   api.SLO
	path   *episode
	next   time.Time // when the next step is due
	last   time.Time // when the last one was
	read   time.Time // when what that went by was read; zero: it is always new
	window window    // that is not over yet
	said   time.Time // when the history was told what would be done
	cold   map[slo.Knob]candidate
}

// hot says whether a loop looks each second.
func (one *loop) hot() bool { return one.state.Next == slo.HotLook }

// host is what the loop goes by of a look at the host.
type host struct {
	targets []target
	knobs   []candidate // without share and use
	mode    slo.Mode
	// directories are the data directories of the instances that helpers are below, by their groups.
	directories map[string]string
}

// target is a database that is promised something.
type target struct {
	group string
	slo   policy.SLO
}

// candidate is a limit that may be lowered, with what the policy gives.
type candidate struct {
	slo.Candidate

	limited bool     // the policy has a limit: else the ceiling is all there is
	devices []string // numbers of the devices of an io limit
}

// episode is what happens from the first limit that is lowered until all is given back: one line of the history.
type episode struct {
	begun           time.Time
	paths           map[string][]string // the values of each limit, the policy's first
	changes         int
	windows, missed int
	worst, last     float64 // the load at worst, and the value last
	worstValue      float64
}

// asker asks one database again and again how much it has done, which is the one question there is.
type asker struct {
	stop  context.CancelFunc
	every time.Duration

	mu   sync.Mutex    // guards what follows
	pace time.Duration // between two questions: every, or less
	all  []answer      // of the last span, the oldest first
	fail error         // of the last question
}

// window is a window with the worst that was seen in it.
type window struct {
	since time.Time
	seen  bool
	worst float64 // the value with the least slack
}

// statements are what a database said of its statements, the newest last: two at least, and those of statementsFor.
type statements []works

// works is what a database said of its statements.
type works struct {
	at  time.Time
	all []observe.Statements
	why string // there are none
}

// answer is one answer of a database.
type answer struct {
	at   time.Time
	took time.Duration
	work int64
	late bool // it did not come in time
}

// copying is what the processes of a group below an instance have read of disks since there were none.
type copying struct {
	directory string // the instance's data
	whole     bool   // they were watched from the first one on
	base      uint64 // what was read before
	points    []point
	size      chan size // the answer, once it was asked for
	told      size
}

// point is how much was read at a time.
type point struct {
	at   time.Time
	read uint64
}

// size is how many bytes a directory has.
type size struct {
	bytes int64
	err   error
}
