package probe

// Order is one load; exactly one part of it is set.
type Order struct {
	Spin    *Spin    `json:"spin,omitempty"`
	Touch   *Touch   `json:"touch,omitempty"`
	Disk    *Disk    `json:"disk,omitempty"`
	Dirty   *Dirty   `json:"dirty,omitempty"`
	Fork    *Fork    `json:"fork,omitempty"`
	Traffic *Traffic `json:"traffic,omitempty"`
	Yield   *Yield   `json:"yield,omitempty"`
}
