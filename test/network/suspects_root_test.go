//go:build root

package network

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bulkhead/internal/attribution"
)

// slow gives an interface of the host a rate in bits a second: what is more waits in its queue, up to 200 ms.
func (s *site) slow(name string, rate uint64) {
	s.t.Helper()
	s.host.must("slow "+name+" down", func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index,
			Handle: netlink.MakeHandle(0x77, 0), Parent: netlink.HANDLE_ROOT},
			Rate: rate / 8, Limit: uint32(rate / 8 / 5), Buffer: 16 << 10})
	})
}

// suspects asks who is to blame for what a group waits for, and checks that its figures add up.
func (s *site) suspects(group string) *attribution.Report {
	s.t.Helper()
	r := &attribution.Report{}
	text := s.must("suspects", group, "--for", "4s", "--json").out
	if err := json.Unmarshal([]byte(text), r); err != nil {
		s.t.Fatal(err)
	}
	for _, one := range r.Resources {
		sum := 0.0
		for _, row := range one.Rows {
			sum += row.Seconds
		}
		if one.Known && (sum > one.Waited+1e-6 || sum < one.Waited-1e-6) {
			s.t.Errorf("%s: rows sum up to %v, and %v was waited", one.Name, sum, one.Waited)
		}
	}
	s.t.Logf("%s\n%s", r.Verdict, text)
	return r
}

// first is the group that has most of a wait for the network, and what was waited.
func first(r *attribution.Report) (group string, part float64) {
	for _, one := range r.Resources {
		for _, row := range one.Rows {
			if one.Name == "network" && row.Who == attribution.Other && group == "" {
				group, part = row.Group, one.Part
			}
		}
	}
	return group, part
}

// sending has groups that send over an interface which takes 80 Mbit/s: the victim a little, again and again, and one
// that fills it, or none.
func sending(t *testing.T, guilty string) *site {
	t.Helper()
	s := newSite(t)
	s.slow(device, 80e6)
	names := []string{"victim", "n1", "n2", "n3", "n4"}
	groups := ""
	for _, name := range names {
		groups += fmt.Sprintf("  %s: {role: helper, match: [{exe: no-such-program-%s}]}\n", name, name)
	}
	s.write("weight: 10000", groups) // before all else that runs here: the network is what counts
	s.must("apply")
	port, _ := s.peer.listen(peerAddr+":0", takeAll)
	for _, name := range names {
		how, connections := "trickle", 1
		if name == guilty {
			how, connections = "send", 1+rand.IntN(4)
		}
		s.traffic(name, how, port, connections)
	}
	time.Sleep(time.Second) // queues fill
	return s
}

// A neighbour that fills the interface over which the victim sends is its first suspect.
func TestSuspectsOfNetwork(t *testing.T) {
	s := sending(t, "n2")
	r := s.suspects("victim")
	if got, part := first(r); got != "n2" || part < attribution.Harm || r.Nothing {
		t.Errorf("the first suspect is %q: %s", got, r.Verdict)
	}
	if text := s.must("suspects", "victim", "--for", "1s").out; !strings.Contains(text,
		"bulkhead set n2:network.egress.max=") {
		t.Errorf("it does not say what would hold it:\n%s", text)
	}
}

// Of random cases with four neighbours, of which one fills the interface, that one is first of all groups in 95 % at
// least; with nobody guilty at most 1 of 20 verdicts names a group first.
func TestSuspectsOfRandomTraffic(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes some minutes: LONG=1")
	}
	const cases = 20
	rng := rand.New(rand.NewPCG(29, 61))
	var all, among, right, innocent, named int
	for n := range cases {
		guilty := ""
		if n%4 != 3 {
			guilty = fmt.Sprintf("n%d", 1+rng.IntN(4))
		}
		t.Run(fmt.Sprintf("%d %s", n, guilty), func(t *testing.T) {
			r := sending(t, guilty).suspects("victim")
			is := len(r.Suspects) > 0 && r.Suspects[0].Who == attribution.Other && !r.Nothing
			if guilty == "" {
				innocent++
				if is {
					named++
				}
				return
			}
			all++
			if group, part := first(r); group == guilty && part >= attribution.Harm {
				among++
			}
			if is && r.Suspects[0].Group == guilty {
				right++
			}
		})
	}
	t.Logf("the guilty was first of groups on the network in %d of %d, and first of all in %d; in %d of %d without "+
		"one a group was named", among, all, right, named, innocent)
	if among*100 < all*95 || named*20 > innocent {
		t.Error("that is too bad")
	}
}
