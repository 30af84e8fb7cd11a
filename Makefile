# Every target does its own set-up; a second run installs nothing.
#
# constraints.txt says which torch; pip's own settings say where it comes from. The default index
# has the CUDA build; for the small CPU build:
#     PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
C_SOURCES := lowcomm/numerics/_arithmetic.c lowcomm/numerics/_cosines.c lowcomm/codecs/_kernels.c
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

.PHONY: help demo test types waiting computing test-long test-gpu test-lowest nightly clean

help: ## show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## train one model on several nodes of this machine, kill two, report
	$(BIN)/lowcomm demo

test waiting computing test-long test-gpu nightly: export OMP_NUM_THREADS = 1
# Hundreds of daemons and ranks are started: with bytecode files each starts in two thirds of the
# time. Set and empty, as some environments forbid to write them.
test waiting computing test-long test-gpu nightly: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.installed-dev ## lint, types, import contracts, then all tests but the long ones
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(MAKE) --no-print-directory --jobs=3 types waiting computing

# At a low priority: it runs beside tests that watch the clock.
types: $(VENV)/.installed-dev ## only the types
	nice -n 15 $(BIN)/pyright

# Tests of real processes and connections watch the clock, and mostly wait. Computations run beside
# them at a low priority, in the time that these leave; their output comes at their end.
# Files run in the order of their names: tests/sims/test_sweep.py, which is long and has processes
# of its own, comes late.
WAITING := tests/cluster tests/peers tests/sims/cluster tests/sims/paced tests/sims/wan
TWO_FILES := --numprocesses 2 --dist loadfile --no-loadscope-reorder
waiting: $(VENV)/.installed-dev
	$(BIN)/pytest -m "not long" $(WAITING) $(TWO_FILES)

computing: $(VENV)/.installed-dev
	@mkdir -p build
	nice -n 10 $(BIN)/pytest -m "not long" $(WAITING:%=--ignore=%) $(TWO_FILES) \
	    > build/computing.txt 2>&1; status=$$?; cat build/computing.txt; exit $$status

# Clusters that watch the clock have the machine for themselves: the demo, for one, takes twice as
# long beside computations. The others mostly wait: two at a time. Computations come last.
TWO_AT_A_TIME := --numprocesses 2 --dist load --maxschedchunk 1
test-long: $(VENV)/.installed-extras ## the tests that take minutes; one of them is the demo
	$(BIN)/pytest -m "long and alone" tests/cluster tests/sims
	$(BIN)/pytest -m "long and not alone and not nightly" tests/cluster $(TWO_AT_A_TIME)
	$(BIN)/pytest -m "long and not alone and not nightly" --ignore=tests/cluster $(TWO_AT_A_TIME)

test-gpu: $(VENV)/.installed-dev ## the tests that need a GPU
	$(BIN)/pytest -m gpu

# Needs the package index; the environment is made anew each time.
test-lowest: $(BIN)/python ## two nodes exchange, with the lowest versions that pyproject.toml admits
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-lowest.txt
	PYTHONPATH=$(CURDIR) LOWCOMM_TEST=lowest build/lowest/bin/python -m tests.cluster.lowest_exchange

nightly: test test-long test-lowest ## all tests, every planted bug and fresh seeds; hours
	$(BIN)/pytest -m nightly $(TWO_AT_A_TIME)
	$(BIN)/python -m sims.mutants
	$(BIN)/python -m sims.shell_mutants
	$(BIN)/python -m sims.sweep --seeds 20000 --first $$(($$(date +%s) * 1000))
	$(BIN)/python -m sims.step_sweep --seeds 2000 --first $$(($$(date +%s) * 1000))
	$(BIN)/python -m sims.gossip_sweep --seeds 1000 --first $$(($$(date +%s) * 1000))
	$(BIN)/python -m sims.hidden --seeds 300 --first $$(($$(date +%s) * 1000))
	$(BIN)/python -m sims.hidden --stepwise --seeds 100 --first $$(($$(date +%s) * 1000))
	$(BIN)/python -m sims.forged --seeds 400 --first $$(($$(date +%s) * 1000))

clean: ## remove what the targets above made, the environment too, but no runs
	rm -rf $(VENV) build *.egg-info lowcomm/*/*.so .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first: it is the largest, and what fails to resolve fails before anything else is fetched.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt $(C_SOURCES)
	@echo "installing lowcomm into $(VENV); torch comes first and is large"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) -e ".[dev]"
	@touch $@

# Large packages that only the long tests of examples/ need. torchtitan wants older ones than hf.
$(VENV)/.installed-extras: $(VENV)/.installed-dev constraints-titan.txt
	$(PIP_INSTALL) -e ".[dev,datasets,hf,lightning,tokenizers]"
	rm -rf build/titan
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/titan \
	    -r constraints-titan.txt
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo "error: $(PYTHON) is not Python 3.11 or newer; try: PYTHON=python3.11 make" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "error: $(PYTHON) cannot make environments; try: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
