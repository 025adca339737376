package api_test

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
)

// Domains are enforced by a rollback of settings alone, watched for a time that makes sense, and the history has both.
func TestEnforce(t *testing.T) {
	good := api.Request{Verb: "tune rollback", Rules: []string{"selinux"}, Enforce: []string{"mysqld_t"},
		EnforceFor: time.Hour}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if got := good.What(); got != "selinux --enforce mysqld_t --watch 1h" {
		t.Errorf("the history says %q", got)
	}
	for want, change := range map[string]func(*api.Request){
		"watched for 1s to 720h": func(r *api.Request) { r.EnforceFor = time.Millisecond },
		"does not wait to be":    func(r *api.Request) { r.ConfirmWithin = time.Minute },
		"a domain has a name":    func(r *api.Request) { r.Enforce = []string{"mysqld_t", ""} },
		"what becomes enforced":  func(r *api.Request) { r.Enforce = nil },
		"enforces no domains":    func(r *api.Request) { r.Verb, r.To = "rollback", 1 },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
