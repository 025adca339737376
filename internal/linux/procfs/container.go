package procfs

import (
	"path"
	"strings"
)

// ContainerPath returns a cgroup path of the process that a container engine made; "" for a process of
// the host. The daemons' own units (docker.service) are of the host.
func (p *Process) ContainerPath() string {
	found := ""
	for _, whole := range p.Cgroups {
		for end := range len(whole) + 1 {
			if end < len(whole) && whole[end] != '/' {
				continue
			}
			if isContainer(path.Base(whole[:end])) && (found == "" || whole < found) {
				found = whole
			}
		}
	}
	return found
}

// isContainer recognises one element of a cgroup path: of Docker, Kubernetes with containerd or CRI-O, LXC, Podman and
// systemd-nspawn or libvirt, or the bare 256-bit id that these give a container below a parent group somebody chose.
func isContainer(name string) bool {
	switch name {
	case "docker", "kubepods", "kubepods.slice", "lxc", "libpod_parent", "machine.slice", "machine":
		return true
	}
	for _, prefix := range []string{"docker-", "kubepods-", "lxc.payload", "lxc.monitor", "libpod-", "cri-containerd-",
		"crio-"} {
		if strings.HasPrefix(name, prefix) {
			return !strings.HasSuffix(name, ".service")
		}
	}
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}
