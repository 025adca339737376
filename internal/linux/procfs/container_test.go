package procfs_test

import (
	"testing"

	"bulkhead/internal/linux/procfs"
)

func TestContainerPath(t *testing.T) {
	for path, want := range map[string]bool{
		"/":                                    false,
		"/system.slice/docker.service":         false,
		"/system.slice/docker-4f5e.scope":      true,
		"/system.slice/docker-cleanup.service": false,
		"/docker/4f5e":                         true,
		"/docker/4f5e/init.scope":              true,
		"/kubepods/besteffort/pod1/2":          true,
		"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-9.scope": true,
		"/kubepods-burstable.slice/x":      true,
		"/lxc/web":                         true,
		"/lxc.payload.web/system.slice":    true,
		"/machine.slice/libpod-4f5e.scope": true,
		"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-77.scope/container": true,
		"/machine.slice/machine-qemu.scope":                                                  true,
		"/bulkhead/mysql3306/db":                                                             false,
		"/batch/4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e":            true,
		"/batch/4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5e4f5g":            false,
		"/dockerlike": false,
	} {
		p := procfs.Process{Cgroups: map[string]string{"cpu": "/", "memory": path}}
		if got := p.ContainerPath() != ""; got != want {
			t.Errorf("%s: container %t", path, got)
		}
	}
}
