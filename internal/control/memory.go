package control

import (
	"errors"

	"bulkhead/internal/apply"
)

// inTime makes a refusal of a change that was undone because the memory of a group did not fall in time: the host is as it was before.
func inTime(err error) error {
	var use *apply.UseError
	var step *apply.StepError
	if !errors.As(err, &use) || !errors.As(err, &step) || len(step.Left) > 0 || step.Open {
		return err
	}
	return fail(CodeRefused, use.Hint(), "%w", err)
}
