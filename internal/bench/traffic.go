package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/bench/sampler"
	"bulkhead/internal/scenario"
)

// traffic asks status what the groups have sent and received.
func (p *systemUnderTest) traffic(ctx context.Context) (map[string]*api.GroupTraffic, error) {
	out, err := p.do(ctx, "status", "--json")
	if err != nil {
		return nil, err
	}
	return parseTraffic([]byte(out))
}

// parseTraffic picks the traffic out of `status --json`.
func parseTraffic(text []byte) (map[string]*api.GroupTraffic, error) {
	var answer struct {
		Groups []struct {
			Group   string            `json:"group"`
			Traffic *api.GroupTraffic `json:"traffic"`
		} `json:"groups"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("read the status: %w", err)
	}
	groups := map[string]*api.GroupTraffic{}
	for _, g := range answer.Groups {
		if g.Traffic != nil {
			groups[g.Group] = g.Traffic
		}
	}
	if len(groups) == 0 {
		return nil,
			errors.New("read the status: no group has traffic; hint: has the policy in force a limit on an interface?")
	}
	return groups, nil
}

// meter is what measures the traffic of groups in an arm; nil where no policy of the arm has limits on interfaces.
func (r *run) meter(arm scenario.Arm) *sampler.TrafficMeter {
	names := []string{arm.Policy}
	for _, p := range arm.Phases {
		names = append(names, p.Policy)
	}
	for _, name := range names {
		if strings.Contains(r.scenario.Policies[name].Text, "network:") {
			return &sampler.TrafficMeter{Read: r.governor.system.traffic}
		}
	}
	return nil
}
