package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/control"
	"bulkhead/internal/metrics"
	"bulkhead/internal/scenario"
)

// The captured outputs are of iperf3 3.12 on Debian 12 over the loopback interface, 100 Mbit/s asked, with one and with two connections.
func TestParseIperf(t *testing.T) {
	for _, tt := range []struct {
		file    string
		several bool
		seconds int
		mbit    float64 // what it says that arrived
	}{{"iperf3.txt", false, 3, 100.309}, {"iperf3-two.txt", true, 2, 100.609}} {
		t.Run(tt.file, func(t *testing.T) {
			var live []float64
			o, err := parseIperf(bytes.NewReader(captured(t, tt.file)), tt.several, func(tps float64) { live = append(live, tps) })
			if err != nil {
				t.Fatal(err)
			}
			if len(o.seconds) != tt.seconds || len(live) != tt.seconds || o.elapsed != time.Duration(tt.seconds)*time.Second {
				t.Errorf("%d seconds, %d live, %v in all; want %d", len(o.seconds), len(live), o.elapsed, tt.seconds)
			}
			for i, s := range o.seconds {
				if s.At != float64(i+1) || math.Abs(s.TPS-100) > 1 || s.TPS != live[i] {
					t.Errorf("second %+v, live %v", s, live[i])
				}
			}
			if math.Abs(8*o.bytes-tt.mbit*1e6) > 1 || math.Abs(o.rate()-tt.mbit) > 0.5 {
				t.Errorf("%.0f bytes and %.2f Mbit a second, want what iperf3 says", o.bytes, o.rate())
			}
		})
	}
	cut := string(captured(t, "iperf3.txt"))
	for name, text := range map[string]string{
		"nothing": "", "a refusal": "iperf3: error - unable to connect to server: Connection refused\n", "cut off": cut[:strings.Index(cut, "receiver")],
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
	if o.transactions != 20 || countOf(o) != 20 || len(live) == 0 || o.elapsed < 950*time.Millisecond {
		t.Errorf("%d beats, %d in the histogram, in %v", o.transactions, countOf(o), o.elapsed)
	}
	if longest := loadFigures(o)["longest"]; longest < 300 || longest > 3000 {
		t.Errorf("the longest wait is %v ms, want that of the beat that was held", longest)
	}
	// The ones behind it were due 50, 100, … ms later.
	late := int64(0)
	for _, b := range o.histogram {
		if b.MS > 90 {
			late += b.Count
		}
	}
	if late < 4 {
		t.Errorf("%d beats came late, want those that waited behind it too: %+v", late, o.histogram)
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

func TestParseTraffic(t *testing.T) {
	groups, err := parseTraffic([]byte(`{"groups":[{"group":"a","traffic":{"counted":true,"out":{"bytes":10,"packets":2},"on":[{"device":"x","direction":"egress","bytes":7}]}},{"group":"b"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if a := groups["a"]; len(groups) != 1 || a == nil || a.Out.Bytes != 10 || len(a.On) != 1 || a.On[0].Bytes != 7 {
		t.Errorf("read %+v", groups)
	}
	for _, text := range []string{"", "{}", `{"groups":[{"group":"a"}]}`} {
		if _, err := parseTraffic([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// count is what a group has sent and received after so many seconds, at 1,000 bytes and 10 packets a second, and the limited interface.
func count(seconds uint64) *control.GroupTraffic {
	c := metrics.Volume{Bytes: 1000 * seconds, Packets: 10 * seconds}
	on := func(direction string, times uint64) metrics.InterfaceTraffic {
		return metrics.InterfaceTraffic{Device: "x", Direction: direction, Volume: metrics.Volume{Bytes: times * 1100 * seconds}, Drops: times * seconds}
	}
	return &control.GroupTraffic{Traffic: metrics.Traffic{Counted: true, Out: c, In: c, On: []metrics.InterfaceTraffic{on("egress", 1), on("ingress", 2)}}}
}

// What lies outside of the span does not count, and a counter that began anew is no negative rate.
func TestTrafficFigures(t *testing.T) {
	began := time.Now()
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	m := &trafficMeter{}
	for s := range uint64(6) {
		now := count(s)
		if s == 0 { // it was idle until then
			now = count(1)
		}
		m.readings = append(m.readings, trafficReading{at(float64(s)), map[string]*control.GroupTraffic{"g": now}})
	}
	f := m.figures(at(0.5), at(5.5))
	for figure, want := range map[string]float64{
		"sent": 1000, "received": 1000, "packets_sent": 10, "packets_received": 10, "wire_out": 1100, "wire_in": 2200, "drops": 12,
	} {
		if got := f["g."+figure]; math.Abs(got-want) > 1e-6 {
			t.Errorf("%s is %v, want %v", figure, got, want)
		}
	}
	if got := m.figures(at(2.1), at(3.1))["g.sent"]; got != 1000 {
		t.Errorf("in one second %v were sent", got)
	}
	if got := m.figures(at(0), at(1))["g.sent"]; got != 0 {
		t.Errorf("in the idle second %v were sent", got)
	}
	anew := trafficFigures(count(100), count(1), time.Second)
	if anew["sent"] != 1000 || anew["wire_out"] != 1100 {
		t.Errorf("after a new beginning: %v", anew)
	}
	before, after := count(1), count(2)
	after.Outside = 1
	after.On[0].Policed = true
	partly := trafficFigures(before, after, time.Second)
	if _, found := partly["sent"]; found {
		t.Error("what the programs see in part is taken for all")
	}
	if _, found := partly["wire_out"]; found {
		t.Error("what is policed is taken for counted")
	}
	if got := (*trafficMeter)(nil).figures(at(0), at(1)); len(got) != 0 {
		t.Errorf("without a meter %v", got)
	}
}

// A meter reads again and again, and says what is wrong when it could read nothing.
func TestTrafficMeter(t *testing.T) {
	seen := make(chan struct{}, 10)
	m := &trafficMeter{read: func(context.Context) (map[string]*control.GroupTraffic, error) {
		seen <- struct{}{}
		return map[string]*control.GroupTraffic{"g": count(1)}, nil
	}}
	m.start(t.Context())
	<-seen
	<-seen
	if err := m.stop(); err != nil || len(m.readings) < 1 {
		t.Errorf("%d readings, %v", len(m.readings), err)
	}
	wrong := errors.New("no status")
	failed := make(chan struct{}, 10)
	m = &trafficMeter{read: func(context.Context) (map[string]*control.GroupTraffic, error) {
		failed <- struct{}{}
		return nil, wrong
	}}
	m.start(t.Context())
	<-failed
	<-failed // the first one is over
	if err := m.stop(); !errors.Is(err, wrong) {
		t.Errorf("error is %v, want %v", err, wrong)
	}
}

// The traffic is measured where a policy of the arm limits it.
func TestMeter(t *testing.T) {
	s, err := scenario.Find("network-egress")
	if err != nil {
		t.Fatal(err)
	}
	r := &run{scenario: s, product: newProduct("bulkhead", t.TempDir(), nil)}
	for _, arm := range s.Arms {
		want := arm.Name == "limited" || arm.Name == "switched"
		if got := r.meter(arm) != nil; got != want {
			t.Errorf("arm %q is measured: %v, want %v", arm.Name, got, want)
		}
	}
}

// The wire's sender is inside its group where it sends, and at the far end where the group's server takes.
func TestIperfCommand(t *testing.T) {
	d := &driver{Load: scenario.Load{Flow: flowIn, Options: []string{"--omit", "1"}}, path: "iperf3", port: 5203, jobs: 2, rate: 100}
	got := strings.Join(iperf3.command(d, 3*time.Second), " ")
	if want := "iperf3 --client 10.79.0.1 --port 5203 --time 3 --interval 1 --format k --forceflush --parallel 2 --bitrate 50000K --omit 1"; got != want {
		t.Errorf("in:\n%s, want\n%s", got, want)
	}
	d = &driver{Load: scenario.Load{Flow: "out"}, path: "iperf3", port: 5201}
	got = strings.Join(iperf3.command(d, 3*time.Second), " ")
	if want := "iperf3 --client 10.79.0.2 --port 5201 --time 3 --interval 1 --format k --forceflush --parallel 1"; got != want {
		t.Errorf("out:\n%s, want\n%s", got, want)
	}
}

// beatsOver sends beats for a time over a wire that gives each back when wait returns.
func beatsOver(t *testing.T, length time.Duration, wait func(b byte, came time.Time)) outcome {
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
		for _, s := range o.seconds {
			got = append(got, s.TPS)
		}
		// The beats of 0.95 s to 3.4 s come back at 3.45 s.
		if want := []float64{19, 0, 0, 61, 20}; len(got) != len(want) || math.Abs(got[4]-want[4]) > 1e-6 || !slices.Equal(got[:4], want[:4]) {
			t.Errorf("beats of each second: %v, want %v", got, want)
		}
	})
}

// On a slow wire the last beats come back after the time is over: that is no second of its own.
func TestBeatsOfASlowWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := beatsOver(t, 3*time.Second, func(_ byte, came time.Time) { time.Sleep(time.Until(came.Add(120 * time.Millisecond))) })
		if o.transactions != 60 || len(o.seconds) != 3 || o.seconds[2].TPS != 20 {
			t.Errorf("%d beats in seconds %+v", o.transactions, o.seconds)
		}
	})
}
