# The root tests in emulated machines: other kernels, other cgroup modes. Included by the Makefile.

MODE ?= unified

# The modes of `make lab-test`, between blanks; `make lab-all` runs every one.
LAB_MODES ?= systemd-unified systemd-hybrid

# A directory for what the machines say, docs/lab for instance.
RECORD ?=

# LONG=1: no test is shortened.
LONG ?=

lab_run = go test -tags lab -count 1 -v -timeout 240m ./test/lab -run '^TestLab$$' $(if $(LONG),-lab.long -lab.limit 60m) $(if $(RECORD),-lab.record '$(abspath $(RECORD))')

.PHONY: lab
lab: lab-deps ## the root tests in an emulated machine: MODE=…; PKG='./internal/…' RUN=regexp: some of them; SHELL=1: a shell
ifdef LAB_SHELL
	go test -c -tags lab -o dist/lab.test ./test/lab
	cd test/lab && ../../dist/lab.test -test.run '^TestLab$$' -test.timeout 24h -lab.limit 24h -lab.mode '$(MODE)' -lab.shell
else ifneq ($(PKG)$(RUN),)
	go test -c -tags lab -o dist/lab.test ./test/lab
	cd test/lab && ../../dist/lab.test -test.run '^TestLab$$' -test.v -test.timeout 75m -lab.mode '$(MODE)' $(if $(LONG),-lab.long -lab.limit 60m) -lab.pkg '$(PKG)' -lab.run '$(RUN)' $(if $(RECORD),-lab.record '$(abspath $(RECORD))')
else
	$(lab_run) -lab.mode '$(MODE)'
endif

.PHONY: lab-test
lab-test: lab-deps ## the same in the modes of LAB_MODES, two machines side by side
	$(lab_run) -lab.mode '$(LAB_MODES)'

.PHONY: lab-all
lab-all: lab-deps ## the same in every mode, no test shortened
	@$(MAKE) --no-print-directory lab-test LAB_MODES=all LONG=1

.PHONY: lab-images
lab-images: lab-deps ## build what is missing of the machines' images
	go test -tags lab -count 1 -v -timeout 45m -parallel 3 ./test/lab -run '^TestImages$$' -lab.mode all

.PHONY: lab-deps
lab-deps: ## install what builds and runs the machines
	@{ command -v mmdebstrap && command -v qemu-system-x86_64 && command -v mke2fs; } >/dev/null || \
		{ apt-get update -q && apt-get install -y -q --no-install-recommends mmdebstrap qemu-system-x86 e2fsprogs; }
