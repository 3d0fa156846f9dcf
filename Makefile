# k3lab. `make report` installs the base package only; every other target installs all that the tests need.
#   make report | test | lab | notebooks | full | cuda | ranks | fmt | clean
#   VENV=DIR       another virtual environment          PYTHON=python3.12   the Python that makes it (3.11 or newer)
#   PARTS=kernels  of `make full`: some folders or files of tests/
#   PYTEST_ARGS=   '-n 2 --dist worksteal' by default, e.g. '-n 0 -k mix' JOBS=4              test processes

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?= -n $(JOBS) --dist worksteal
NBMAKE_ARGS ?= -n $(JOBS) --dist worksteal
REPORT_ARGS ?= all --out reports --open
PIP_ARGS ?= -qq --progress-bar off --disable-pip-version-check

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt
BASE := $(VENV)/.k3lab-base
ALL := $(VENV)/.k3lab-all
PARTS ?= top $(sort $(filter-out __pycache__,$(patsubst tests/%/,%,$(wildcard tests/*/))))
FULL_LOGS := data/results/full

.PHONY: help report test check lab notebooks full cuda ranks fmt clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Order-only on the interpreter: it is a link, and its age says nothing.
$(BASE): pyproject.toml constraints.txt k3lab/__init__.py | $(BIN)/python
	@echo "Installing k3lab into $(VENV) (the first time: a minute or more) ..."
	@$(PIP) -e .
	@touch $@

$(ALL): pyproject.toml constraints.txt k3lab/__init__.py | $(BIN)/python
	@echo "Installing k3lab and its test, notebook and developer tools into $(VENV) (the first time: a minute or more) ..."
	@$(PIP) -e ".[test,notebooks,dev]"
	@touch $(BASE) $@

report: $(BASE)
	$(BIN)/k3lab report $(REPORT_ARGS)

check: $(ALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lab: $(ALL)
	$(BIN)/jupyter lab notebooks

# Two notebooks at a time, so one thread each; a cell may take five minutes.
notebooks: $(ALL)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest --nbmake --nbmake-timeout=300 $(NBMAKE_ARGS) notebooks

# What `make test` leaves out: slow tests, and more examples of the property tests. A part is a folder or file of tests/, or `top`; its log
# is kept, with the checkout's path written as '.'. Where a part has no such tests, pytest ends in 5.
full: check
	@mkdir -p $(FULL_LOGS)
	@for part in $(PARTS); do \
	  paths=tests/$$part; if [ $$part = top ]; then paths=$$(ls tests/test_*.py); fi; \
	  $(BIN)/python -m pytest --slow -m "slow or hypothesis" --durations=10 --show-capture=no $(PYTEST_ARGS) $$paths 2>&1 \
	    | sed -u 's#$(CURDIR)#.#g' | tee $(FULL_LOGS)/$${part//\//-}.txt || [ $$? = 5 ]; \
	done

# What data/results/cuda holds, measured again: needs an NVIDIA GPU (k3lab[cuda]), and flydsl unless build/cuda is there.
cuda: $(ALL)
	$(BIN)/python -m benchmarks.cuda_check build/cuda --out data/results/cuda
	$(BIN)/python -m benchmarks.cuda_reports build/cuda --out data/results/cuda
	for build in exact fast; do $(BIN)/python -m benchmarks.cuda_sweep --build $$build --out data/results/cuda; done
	$(BIN)/python -m benchmarks.cuda_sanitize build/cuda --out data/results/cuda
	K3LAB_ARTEFACTS=build/cuda $(BIN)/k3lab selftest --backend cuda --geometry mini --out build/cuda-selftest
	cp build/cuda-selftest/selftest.json data/results/cuda/

# What data/results/ranks holds, measured again: needs two NVIDIA GPUs of one host (k3lab[cuda]), and flydsl to lower the kernels.
ranks: $(ALL)
	$(BIN)/python -m benchmarks.cuda_ranks build/ranks --lower
	$(BIN)/python -m benchmarks.cuda_ranks build/ranks --out build/ranks/found
	$(BIN)/python -m benchmarks.cuda_ranks_results build/ranks/found --to data/results/ranks

fmt: $(ALL)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	if compgen -G 'notebooks/*.ipynb' > /dev/null; then $(BIN)/nbstripout notebooks/*.ipynb; fi

# The environment stays: remove it by hand for a fresh one.
clean:
	rm -rf reports build dist k3lab.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find k3lab tests notebooks benchmarks -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
