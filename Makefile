# bulkhead: build, prove, show. `make` alone lists the targets.

# SHELL=1 on the command line asks `make lab` for a shell; what runs the recipes is always this one.
LAB_SHELL := $(if $(filter command,$(firstword $(origin SHELL))),$(SHELL))
override SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A fresh root shell need not know where Go is, nor a CI job where HOME is.
export PATH := $(PATH):/usr/local/go/bin
export HOME ?= /root
export CGO_ENABLED ?= 0
export DEBIAN_FRONTEND := noninteractive
# One set of flags, so that what one target compiles the others find in the cache.
export GOFLAGS ?= -trimpath

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X bulkhead/internal/cli.Version=$(VERSION) -X bulkhead/internal/cli.Commit=$(COMMIT)
# The day that manual pages and packages are of.
export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),$(shell date +%s))

GOLANGCI_VERSION := v2.15.0
TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/bulkhead-tools
GOLANGCI := $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint

NFPM_VERSION := v2.45.2
NFPM := $(TOOLS)/nfpm-$(NFPM_VERSION)/nfpm

# What test/ansible runs, in a directory of its own.
ANSIBLE := $(TOOLS)/ansible

# Tests sync what they write. In memory that costs nothing, and what they hold does not depend on it.
IN_MEMORY := $(if $(wildcard /dev/shm/.),TMPDIR=/dev/shm)

# How many inputs `make fuzz` gives to a target, and for about how many seconds of CPU time at most: all targets take
# less than a minute on two cores.
FUZZ_INPUTS ?= 3000
FUZZ_SECONDS ?= 1

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: deps build ## show it: a MariaDB alone, beside hogs, and beside the same hogs under a policy (about 4 minutes)
	./bulkhead bench demo

.PHONY: test
test: ## install what is missing and run everything but the linter: the whole proof, about 20 minutes
	@scripts/steps deps build unit fuzz test-root lab-test demo-smoke

.PHONY: test-long
# What is shorter in `make test`, and how long it is here: property checks (25; 2,000 under the race detector), random
# sequences of changes (5; 500, and 50 on the real kernel), failing calls of the disk (every tenth; every one), inputs
# of fuzz targets (3,000, or a second of CPU time, from the seeds; 100,000, or five minutes, guided by the code that
# inputs reach, from what is kept of earlier runs), steps of an apply after which it is killed and rolled back (every third; every one), records of the
# journal that are damaged (every fourth; every one), moments at which proofs end (INTERRUPTS), churn beside the agent (8 s; CHURN), and
# what SPAN, KILLS and PROBES say in scripts/test-root. Only here (LONG=1): the demo interrupted and killed, and a run in a
# peer's arm (another scenario is, at five moments, in `make test`), and on servers that exist; packages made twice; a change
# of `tune` measured on a MariaDB; a MariaDB of 1 GiB that is lowered (512 MiB); the machine
# with planted faults and other programs (MODE=advice); the page in a browser (`make page-test`); the Ansible collection (`make ansible-test`);
# newer releases of the engines (`make engines-test`).
test-long: ## the same and the linter, harder: race detector, 80 times the property checks, all failures of the disk, 500 random sequences, long fuzzing, the full demo, the lab
	@LONG=1 scripts/deps
	@scripts/steps build lint race page-test
	@GUIDED=1 FUZZ_CORPUS="$$(go env GOCACHE)/fuzz" $(MAKE) --no-print-directory fuzz FUZZ_INPUTS=100000 FUZZ_SECONDS=300
	SEQUENCES=500 go test -count 1 -timeout 60m -run TestAnySequenceIsGivenBack ./internal/control
	FAULTS=all go test -count 1 -timeout 30m -run 'TestVerbsOnAFailingDisk|TestKilledBetweenAnyTwoWrites' ./internal/control
	@scripts/ansible-deps $(ANSIBLE)
	@LONG=1 ANSIBLE='$(ANSIBLE)' CHURN=10m SPAN=10s TIMEOUT=90m KILLS=all PROBES=20 SEQUENCES=50 INTERRUPTS=20 scripts/steps test-root engines-test demo lab-all

.PHONY: build
build: ## build ./bulkhead, one static binary
	go build -trimpath -ldflags '$(LDFLAGS)' -o bulkhead ./cmd/bulkhead

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
BINDIR ?= $(PREFIX)/bin
UNITDIR ?= $(PREFIX)/lib/systemd/system

.PHONY: install
install: build ## put binary, units, init script, completion and manual below DESTDIR and PREFIX (/usr/local); starts nothing
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' BINDIR='$(BINDIR)' UNITDIR='$(UNITDIR)' SYSCONFDIR='$(SYSCONFDIR)' scripts/install

.PHONY: uninstall
uninstall: ## take away what `make install` with the same DESTDIR and PREFIX put there
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' BINDIR='$(BINDIR)' UNITDIR='$(UNITDIR)' SYSCONFDIR='$(SYSCONFDIR)' scripts/install uninstall

.PHONY: packages
packages: build $(NFPM) ## deb and rpm for amd64 and arm64 into dist (ARCHES=amd64: only those; MAINTAINER='name <address>')
	@NFPM='$(NFPM)' VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' ARCHES='$(or $(ARCHES),amd64 arm64)' MAINTAINER='$(MAINTAINER)' scripts/packages

$(NFPM):
	GOBIN=$(@D) go install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)

.PHONY: deps
deps: ## install the Debian packages that tests and demo use, if missing, without starting a server
	@scripts/deps

.PHONY: lint
lint: $(GOLANGCI) ## golangci-lint over all code, whatever its build tags (CI runs it beside `make test`)
	$(GOLANGCI) run --build-tags root,lab,placement,browser ./...

$(GOLANGCI):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

.PHONY: unit
unit: ## every test that needs neither root nor a server; properties are checked 25 times, and every fuzz target with its seeds
	GOGC=400 RAPID_CHECKS=25 $(IN_MEMORY) go test -p 4 -parallel 4 ./...

.PHONY: fuzz
fuzz: ## every fuzz target, for some seconds (GUIDED=1: by the code that inputs reach)
	@scripts/fuzz $(FUZZ_INPUTS) $(FUZZ_SECONDS)

.PHONY: scripts
scripts: ## the command-line scripts alone
	go test ./test/script/...

.PHONY: test-root
test-root: deps ## the tests that need root, this kernel's control groups and real servers
	@scripts/test-root

.PHONY: engines-test
# Those of Debian's unstable suite, which are downloaded once and kept in /var/cache/bulkhead/engines.
engines-test: deps ## what root tests say of engines, on MySQL 9.7, PostgreSQL 18 and Valkey 9 in place of the host's, and on Apache Cassandra
	@command -v mmdebstrap >/dev/null || apt-get install -y -q --no-install-recommends mmdebstrap
	@RELEASES=1 LONG=1 TIMEOUT=30m TESTS='TestLive(Servers|Helpers|ServersRoot|Cassandra)|TestSize(Postgres|MariaDB)Root|TestReleasesRoot|TestServerRoot|TestExistingRoot|TestThreeServers|TestGuardUndoesABadChange|TestLowerMariaDBUnderLoad' \
		scripts/test-root internal/bench internal/engine/recognise internal/memory internal/advise/gather test/e2e

.PHONY: ansible-test
ansible-test: ## the Ansible collection on three hosts over ssh, as `make test-long` has it (some minutes)
	@scripts/ansible-deps $(ANSIBLE)
	@LONG=1 TIMEOUT=30m ANSIBLE='$(ANSIBLE)' scripts/test-root test/ansible

AXE_VERSION := 4.14.1
AXE_SUM := 29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
AXE := $(TOOLS)/axe-core-$(AXE_VERSION)/package/axe.min.js

.PHONY: page-test
page-test: $(AXE) ## the page of `bulkhead serve` in a headless Chromium, at three sizes, light and dark, with axe (a minute; PICTURES=DIR: keep what it saw)
	@{ command -v chromium && fc-list | grep -q .; } >/dev/null 2>&1 || \
		{ apt-get update -q && apt-get install -y -q --no-install-recommends chromium fontconfig fonts-dejavu-core; }
	AXE='$(AXE)' PAGE_PICTURES='$(PICTURES)' go test -tags browser -count 1 ./internal/page

$(AXE):
	@command -v npm >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends npm; }
	@rm -rf $(TOOLS)/axe-core-$(AXE_VERSION) && mkdir -p $(TOOLS)/axe-core-$(AXE_VERSION)
	cd $(TOOLS)/axe-core-$(AXE_VERSION) && npm pack --silent axe-core@$(AXE_VERSION) && tar -xzf axe-core-$(AXE_VERSION).tgz
	@echo '$(AXE_SUM)  $(AXE)' | sha256sum --check --quiet || { rm -rf $(TOOLS)/axe-core-$(AXE_VERSION); exit 1; }

.PHONY: demo-smoke
demo-smoke: deps build ## one short round of the demo, to see that it works and leaves nothing behind
	@scripts/demo-smoke

.PHONY: bench-proof
bench-proof: deps build ## every proof, with figures and pictures into docs/proof.md and README's table (about 90 minutes on a quiet machine; ONLY=demo,backup: these alone; ROUNDS=2: fewer rounds)
	unshare --pid --fork --mount-proc --kill-child ./bulkhead bench all --rounds $(or $(ROUNDS),5) $(if $(ONLY),--only $(ONLY)) --out dist/proof --document docs/proof.md && held=0 || held=$$?; \
		scripts/demo-table; exit $$held

.PHONY: proof-check
proof-check: ## says which scenarios of docs/proof.md are to be measured again (edited since, few rounds), and whether it is what its results make
	go test -tags proof -count 1 -run '^TestProofIsOfTheseScenarios$$' ./internal/bench

.PHONY: race
race: ## the unit tests under the race detector (needs gcc), properties checked 2,000 times
	CGO_ENABLED=1 RAPID_CHECKS=2000 go test -race -timeout 30m ./...

.PHONY: bench
bench: deps ## benchmarks: planning, a pass that changes nothing, the idle agent, a scrape beside one of node_exporter, what a switch costs under BPF programs
	@scripts/bench

.PHONY: bench-compare
bench-compare: ## benchmarks of this tree beside those of BASE (a commit), each beside BASE against itself (ROUNDS=7; ONLY=pattern)
	@scripts/bench-compare $(or $(BASE),$(error say which commit: BASE=36981b0)) $(ONLY)

.PHONY: bench-placement
bench-placement: ## how soon processes are placed and at what CPU time, beside libcgroup's daemon (7 minutes; PART=0.1: a tenth of the starts; FAST=1: with fast moves, which some kernels keep until the next boot)
	@{ command -v cgrulesengd && command -v gcc; } >/dev/null || \
		{ apt-get update -q && apt-get install -y -q --no-install-recommends cgroup-tools gcc libc6-dev; }
	go test -tags placement -count 1 -timeout 30m -v ./test/placement -placement.part $(or $(PART),1) $(if $(FAST),-placement.fast)

.PHONY: bpf
# The objects are in the repository, so that nobody needs a compiler for BPF to build the program.
bpf: ## compile the BPF programs anew, after a change of their source (clang 14 of Debian 12)
	@{ command -v clang-14 && command -v llvm-strip-14 && [ -e /usr/include/bpf/bpf_helpers.h ]; } >/dev/null || \
		{ apt-get update -q && apt-get install -y -q --no-install-recommends clang-14 llvm-14 libbpf-dev linux-libc-dev; }
	@scripts/bpf internal/linux/bpfcount

.PHONY: clean
clean: ## remove what build made
	rm -rf bulkhead dist

include test/lab/lab.mk
