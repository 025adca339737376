package load

import (
	"bytes"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/scenario"
)

// The captured outputs are of iperf3 3.12 on Debian 12 over the loopback interface, 100 Mbit/s asked, with one and with
// two connections.
func TestParseIperf(t *testing.T) {
	for _, tt := range []struct {
		file    string
		several bool
		seconds int
		mbit    float64 // what it says that arrived
	}{{"iperf3.txt", false, 3, 100.309}, {"iperf3-two.txt", true, 2, 100.609}} {
		t.Run(tt.file, func(t *testing.T) {
			var live []float64
			o, err := parseIperf(bytes.NewReader(captured(t, tt.file)), tt.several,
				func(tps float64) { live = append(live, tps) })
			if err != nil {
				t.Fatal(err)
			}
			if len(o.Seconds) != tt.seconds || len(live) != tt.seconds ||
				o.Elapsed != time.Duration(tt.seconds)*time.Second {
				t.Errorf("%d seconds, %d live, %v in all; want %d", len(o.Seconds), len(live), o.Elapsed, tt.seconds)
			}
			for i, s := range o.Seconds {
				if s.At != float64(i+1) || math.Abs(s.TPS-100) > 1 || s.TPS != live[i] {
					t.Errorf("second %+v, live %v", s, live[i])
				}
			}
			if math.Abs(8*o.bytes-tt.mbit*1e6) > 1 || math.Abs(o.Rate()-tt.mbit) > 0.5 {
				t.Errorf("%.0f bytes and %.2f Mbit a second, want what iperf3 says", o.bytes, o.Rate())
			}
		})
	}
	cut := string(captured(t, "iperf3.txt"))
	for name, text := range map[string]string{
		"nothing": "", "a refusal": "iperf3: error - unable to connect to server: Connection refused\n",
		"cut off":             cut[:strings.Index(cut, "receiver")],
		"times that are none": "[  5]   3.00-0.00   sec  35.9 MBytes  100309 Kbits/sec   receiver\n",
	} {
		if _, err := parseIperf(strings.NewReader(text), false, nil); err == nil {
			t.Errorf("%s was read as a run", name)
		}
	}
}

// Beats go out when they are due, however long the answer to one takes: all that wait behind it waited, too.
func TestBeats(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	const held, pause = 4, 300 * time.Millisecond
	go func() {
		waiting := make(chan byte, 100)
		go func() {
			defer close(waiting)
			for b := make([]byte, 1); ; {
				if _, err := io.ReadFull(near, b); err != nil {
					return
				}
				waiting <- b[0]
			}
		}()
		for b := range waiting {
			if b == held {
				time.Sleep(pause)
			}
			if _, err := near.Write([]byte{b}); err != nil {
				return
			}
		}
	}()
	var live []float64
	o, err := beats(far, time.Second, func(tps float64) { live = append(live, tps) })
	if err != nil {
		t.Fatal(err)
	}
	if o.Transactions != 20 || countOf(o) != 20 || len(live) == 0 || o.Elapsed < 950*time.Millisecond {
		t.Errorf("%d beats, %d in the histogram, in %v", o.Transactions, countOf(o), o.Elapsed)
	}
	if longest := o.Figures()["longest"]; longest < 300 || longest > 3000 {
		t.Errorf("the longest wait is %v ms, want that of the beat that was held", longest)
	}
	// The ones behind it were due 50, 100, … ms later.
	late := int64(0)
	for _, b := range o.Histogram {
		if b.MS > 90 {
			late += b.Count
		}
	}
	if late < 4 {
		t.Errorf("%d beats came late, want those that waited behind it too: %+v", late, o.Histogram)
	}
}

// A control connection that ends is an error, soon.
func TestBeatsLost(t *testing.T) {
	near, far := net.Pipe()
	go func() {
		_, _ = io.ReadFull(near, make([]byte, 3))
		_ = near.Close()
	}()
	began := time.Now()
	if _, err := beats(far, time.Minute, func(float64) {}); err == nil || !strings.Contains(err.Error(), "beat 0") {
		t.Errorf("error is %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to end", took)
	}
}

// The wire's sender is inside its group where it sends, and at the far end where the group's server takes.
func TestIperfCommand(t *testing.T) {
	d := &Driver{Load: scenario.Load{Flow: FlowIn, Options: []string{"--omit", "1"}}, Path: "iperf3", Port: 5203,
		Jobs: 2, Rate: 100}
	got := strings.Join(iperf3.command(d, 3*time.Second), " ")
	if want := "iperf3 --client 10.79.0.1 --port 5203 --time 3 --interval 1 --format k --forceflush --parallel 2 " +
		"--bitrate 50000K --omit 1"; got != want {
		t.Errorf("in:\n%s, want\n%s", got, want)
	}
	d = &Driver{Load: scenario.Load{Flow: "out"}, Path: "iperf3", Port: 5201}
	got = strings.Join(iperf3.command(d, 3*time.Second), " ")
	want := "iperf3 --client 10.79.0.2 --port 5201 --time 3 --interval 1 --format k --forceflush --parallel 1"
	if got != want {
		t.Errorf("out:\n%s, want\n%s", got, want)
	}
}

// beatsOver sends beats for a time over a wire that gives each back when wait returns.
func beatsOver(t *testing.T, length time.Duration, wait func(b byte, came time.Time)) Outcome {
	t.Helper()
	type stamped struct {
		b    byte
		came time.Time
	}
	far, near := net.Pipe()
	waiting := make(chan stamped, 100)
	go func() {
		defer close(waiting)
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(near, b); err != nil {
				return
			}
			waiting <- stamped{b[0], time.Now()}
		}
	}()
	go func() {
		for s := range waiting {
			wait(s.b, s.came)
			if _, err := near.Write([]byte{s.b}); err != nil {
				return
			}
		}
	}()
	o, err := beats(far, length, func(float64) {})
	_ = far.Close()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Seconds in which nothing comes back are in the series, and what comes back after them is in its own second.
func TestBeatsOfAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := beatsOver(t, 5*time.Second, func(b byte, _ time.Time) {
			if b == 19 { // due in the last moment of the first second
				time.Sleep(2500 * time.Millisecond)
			}
		})
		var got []float64
		for _, s := range o.Seconds {
			got = append(got, s.TPS)
		}
		// The beats of 0.95 s to 3.4 s come back at 3.45 s.
		if want := []float64{19, 0, 0, 61, 20}; len(got) != len(want) || math.Abs(got[4]-want[4]) > 1e-6 ||
			!slices.Equal(got[:4], want[:4]) {
			t.Errorf("beats of each second: %v, want %v", got, want)
		}
	})
}

// On a slow wire the last beats come back after the time is over: that is no second of its own.
func TestBeatsOfASlowWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := beatsOver(t, 3*time.Second,
			func(_ byte, came time.Time) { time.Sleep(time.Until(came.Add(120 * time.Millisecond))) })
		if o.Transactions != 60 || len(o.Seconds) != 3 || o.Seconds[2].TPS != 20 {
			t.Errorf("%d beats in seconds %+v", o.Transactions, o.Seconds)
		}
	})
}
