package api

// Tuning is a setting of the kernel that is kept, as `tune status` shows it.
type Tuning struct {
	// Limit says that it is a limit of a group, "mysql3306:memory.huge". What its group holds is said by `status`.
	Limit bool `json:"limit,omitempty"`

	Name   string `json:"name"`
	Wanted string `json:"wanted"`
	Holds  string `json:"holds"`  // "" where the kernel does not have it
	Before string `json:"before"` // what it held before bulkhead changed it; "" where it has not
	From   string `json:"from"`   // "host.tune", "tune apply MEM-01"
	// Overruled says which line of another file sets it after ours when the host boots; "" is none.
	Overruled string `json:"overruled,omitempty"`
	// Disk is the kernel's name of the disk that it is a setting of.
	Disk string `json:"disk,omitempty"`
	// UntilBoot says that nothing sets it at boot: the disk says nothing of itself by which a rule finds it.
	UntilBoot bool `json:"until_boot,omitempty"`
	// Unit says that it is a setting of a service, which counts when that starts.
	Unit bool `json:"unit,omitempty"`
	// Waits says that it counts when the host boots next.
	Waits bool `json:"waits_for_reboot,omitempty"`
	// Running is what runs where that has another value: the limit of the service, the option of the mount.
	Running string `json:"running,omitempty"`
}
