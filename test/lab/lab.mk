# The root tests in emulated machines: other kernels, other cgroup modes. Included by the Makefile.

MODE ?= unified

.PHONY: lab
lab: lab-deps ## the root tests in an emulated machine: MODE=unified, hybrid or legacy
	go test -tags lab -count 1 -timeout 45m ./test/lab -lab.mode $(MODE)

.PHONY: lab-all
lab-all: lab-deps ## the same in every mode, one after the other
	for mode in unified hybrid legacy; do go test -tags lab -count 1 -timeout 45m ./test/lab -lab.mode $$mode; done

.PHONY: lab-deps
lab-deps: ## install what builds and runs the machines
	@{ command -v mmdebstrap && command -v qemu-system-x86_64 && command -v mke2fs; } >/dev/null || \
		{ apt-get update -q && apt-get install -y -q --no-install-recommends mmdebstrap qemu-system-x86 e2fsprogs; }
