package usage

import "path/filepath"

// PathFlag is the value of a flag that names a file or directory: it becomes absolute here, since other processes and
// requests to the agent name it too.
type PathFlag string

// Set takes over what was typed; "" stays empty.
func (p *PathFlag) Set(typed string) error {
	if typed == "" {
		*p = ""
		return nil
	}
	absolute, err := filepath.Abs(typed)
	*p = PathFlag(absolute)
	return err
}

// String is the path.
func (p *PathFlag) String() string { return string(*p) }

// Type is the name of the value in help, where the flag does not say better.
func (p *PathFlag) Type() string { return "path" }
