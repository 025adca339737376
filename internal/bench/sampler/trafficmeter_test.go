package sampler

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
)

func TestUpTo(t *testing.T) {
	for path, want := range map[string]string{
		"/bulkhead-bench/mysql": "/bulkhead-bench/mysql", "/bulkhead-bench/mysql/db": "/bulkhead-bench/mysql", "/": "",
		"/user.slice":                                  "",
		"/bulkhead-bench-peer-mysql":                   "/bulkhead-bench-peer-mysql",
		"/bulkhead.slice/bulkhead-mysql.slice/x.scope": "/bulkhead.slice/bulkhead-mysql.slice",
	} {
		if got := upTo(path, "mysql"); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// count is what a group has sent and received after so many seconds, at 1,000 bytes and 10 packets a second, and the
// limited interface.
func count(seconds uint64) *api.GroupTraffic {
	c := metrics.Volume{Bytes: 1000 * seconds, Packets: 10 * seconds}
	on := func(direction string, times uint64) metrics.InterfaceTraffic {
		return metrics.InterfaceTraffic{Device: "x", Direction: direction,
			Volume: metrics.Volume{Bytes: times * 1100 * seconds}, Drops: times * seconds}
	}
	return &api.GroupTraffic{Traffic: metrics.Traffic{Counted: true, Out: c, In: c,
		On: []metrics.InterfaceTraffic{on("egress", 1), on("ingress", 2)}}}
}

// What lies outside of the span does not count, and a counter that began anew is no negative rate.
func TestTrafficFigures(t *testing.T) {
	began := time.Now()
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	m := &TrafficMeter{}
	for s := range uint64(6) {
		now := count(s)
		if s == 0 { // it was idle until then
			now = count(1)
		}
		m.readings = append(m.readings, trafficReading{at(float64(s)), map[string]*api.GroupTraffic{"g": now}})
	}
	f := m.figures(at(0.5), at(5.5))
	for figure, want := range map[string]float64{
		"sent": 1000, "received": 1000, "packets_sent": 10, "packets_received": 10, "wire_out": 1100, "wire_in": 2200,
		"drops": 12,
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
	if got := (*TrafficMeter)(nil).figures(at(0), at(1)); len(got) != 0 {
		t.Errorf("without a meter %v", got)
	}
}

// A meter reads again and again, and says what is wrong when it could read nothing.
func TestTrafficMeter(t *testing.T) {
	seen := make(chan struct{}, 10)
	m := &TrafficMeter{Read: func(context.Context) (map[string]*api.GroupTraffic, error) {
		seen <- struct{}{}
		return map[string]*api.GroupTraffic{"g": count(1)}, nil
	}}
	m.start(t.Context())
	<-seen
	<-seen
	if err := m.stop(); err != nil || len(m.readings) < 1 {
		t.Errorf("%d readings, %v", len(m.readings), err)
	}
	wrong := errors.New("no status")
	failed := make(chan struct{}, 10)
	m = &TrafficMeter{Read: func(context.Context) (map[string]*api.GroupTraffic, error) {
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
