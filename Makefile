# One command for each habit. Every target that runs Python first makes the environment, and only when the lock or
# the project file has changed since it was made: a second run does no work and needs no network.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
SCHEDULES ?= 2000
SEED ?= 0
CHECK_SCHEDULES ?= 200
MINUTES ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
SOURCES := lineage_stash raydp_jobs benchmarks tests

# The markers that `make test` leaves to the two targets after it.
ORDINARY := not slow and not services

# Every run says where its time went.
SLOWEST := --durations=10

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup compiled check lint format test test-pure test-failures test-long test-services simulate chaos mutants demo bench bench-full peers clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv from the lock and install the project in it

# The lock is complete, so nothing is resolved; the build tool is in it, so the editable install downloads nothing.
$(STAMP): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "Python 3.11 is needed; say where it is: make setup PYTHON=path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

compiled: setup ## make the compiled form of the hot modules, where there is a C compiler
	@if command -v cc >/dev/null; then $(BIN)/python -m lineage_stash.compiling; \
	else echo "No C compiler: the sources run as they are, about three times slower on the way of a call."; fi

check: lint ## format, lint, types, core tests and some seeds: under a minute
	$(BIN)/pytest -q tests/core tests/store tests/test_*.py
	$(BIN)/python -m lineage_stash.testing simulate --schedules $(CHECK_SCHEDULES) --seed $(SEED)

lint: setup ## ruff's rules, ruff's format, mypy --strict
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy --strict lineage_stash

format: setup ## format the code and repair what ruff can repair
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# Rules are broken on purpose in the sources, so their tests run these, while the compiler is busy beside them; what
# users run, Ray's side, runs compiled.
test: setup ## all tests but the slow ones and those that need services
	$(MAKE) --no-print-directory --jobs=2 test-pure compiled
	LINEAGE_STASH_PURE=0 $(BIN)/pytest tests -m "$(ORDINARY) and ray" $(SLOWEST)

test-pure: setup
	LINEAGE_STASH_PURE=1 $(BIN)/pytest tests -m "$(ORDINARY) and not ray" $(SLOWEST)

test-failures: compiled ## the slow tests: real processes, really killed
	LINEAGE_STASH_PURE=0 $(BIN)/pytest tests -m "slow and not long" $(SLOWEST)

test-long: compiled ## the slow tests that the gate has no time for: a full disk, two machines
	LINEAGE_STASH_PURE=0 $(BIN)/pytest tests -m "long" $(SLOWEST)

test-services: setup ## the tests that need outside services; installs redis-server and chromium where there are none
	.ci/install-redis
	.ci/install-chromium
	$(BIN)/pytest tests -m "services" $(SLOWEST)

simulate: compiled ## random schedules of faults: SCHEDULES=2000 SEED=0
	$(BIN)/python -m lineage_stash.testing simulate --schedules $(SCHEDULES) --seed $(SEED)

chaos: compiled ## programs of many shapes while their processes are killed: MINUTES=2 SEED=0
	$(BIN)/python -m lineage_stash.testing chaos --minutes $(MINUTES) --seed $(SEED)

mutants: setup ## how many schedules it takes to catch each forgotten rule, from seed 0
	$(BIN)/python -m tests.sim.count_mutants

demo: compiled ## words counted by Spark and actors while some of these are killed, and the result proved
	RAY_ADDRESS=local $(BIN)/python -m raydp_jobs.demo

bench: compiled ## the suite's quick profile and its report: under 15 minutes; or PART=core, store, checkpoint, replicated, nodes, tasks, graph, spark, metrics, ray
ifdef PART
	$(BIN)/python -m benchmarks $(PART)
else
	-$(BIN)/python -m benchmarks suite --quick
	$(BIN)/python -m benchmarks report
endif

bench-full: compiled ## the suite's full profile and its report: about an hour; what was measured already is not run again
	-$(BIN)/python -m benchmarks suite --full
	$(BIN)/python -m benchmarks report

# What users would pick instead: a lock each, complete like ours, because their pins contradict each other and ours.
PEERS := benchmarks/.peers
PEER_STAMPS := $(patsubst benchmarks/suite/peers/%.lock,$(PEERS)/%/.stamp,$(wildcard benchmarks/suite/peers/*.lock))

peers: setup $(PEER_STAMPS) ## make an environment for each competitor of the benchmark suite

$(PEERS)/%/.stamp: benchmarks/suite/peers/%.lock
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

clean: ## remove the environment, caches and build products
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
