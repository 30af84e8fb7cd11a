# Every target does its own set-up; a second run installs nothing.
#
# constraints.txt says which torch; pip's own settings say where it comes from. The default index
# has the CUDA build; for the small CPU build:
#     PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
C_SOURCES := lowcomm/_arithmetic.c lowcomm/_cosines.c lowcomm/codecs/_kernels.c
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

.PHONY: help demo test test-long nightly clean

help: ## show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## train one model on several nodes of this machine, kill one, report
	$(BIN)/lowcomm demo

test test-long nightly: export OMP_NUM_THREADS = 1

test: $(VENV)/.installed-dev ## lint, types, import contracts, then all tests but the long ones
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright
	$(BIN)/pytest -m "not long" --numprocesses 2 --dist loadfile

test-long: $(VENV)/.installed-dev ## the tests that take minutes; one of them is the demo
	$(BIN)/pytest -m long

nightly: $(VENV)/.installed-dev ## every planted bug of the core and of the shell: no change waits for these
	$(BIN)/python -m sims.mutants
	$(BIN)/python -m sims.shell_mutants

clean: ## remove what the targets above made, the environment too, but no runs
	rm -rf $(VENV) build *.egg-info lowcomm/*.so lowcomm/codecs/*.so .hypothesis .import_linter_cache .pytest_cache .ruff_cache
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

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo "error: $(PYTHON) is not Python 3.11 or newer; try: PYTHON=python3.11 make" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "error: $(PYTHON) cannot make environments; try: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
