# Every target runs in .venv. It is created on first use and updated when pyproject.toml or constraints.txt changes.
# To choose the interpreter: make PYTHON=/path/to/python3.12 (run `make clean` first if .venv exists).

PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
PY := $(VENV)/bin/python

# If PYTHON is set, only that interpreter is tried. If the default python3 is too old, newer ones are tried.
ifeq ($(origin PYTHON),file)
CANDIDATES := $(PYTHON) python3.13 python3.12 python3.11
else
CANDIDATES := $(PYTHON)
endif

TRAINERS := pytorch-ignite torchtnt lightning 'transformers[torch]' keras
HOSTS ?= keras lightning transformers ignite fastai accelerate together
PINNED := pyproject.toml constraints.txt
COMPILED := $(VENV)/.stamp-compiled
# --no-compile saves a minute for torch: Python compiles modules when they are first imported.
PIP_INSTALL := -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

# Write bytecode even if the shell disables it. Otherwise, every test process would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all faults test-parallel test-adapters test-remote test-gpu page test-board lint style bench bench-parallel bench-gpu bench-board bench-peers docs pictures board-pictures clean

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.stamp-demo ## train a small network on handwritten digits (1 minute)
	@$(VENV)/bin/hookpoint demo

# The first run of pytest compiles what the tests import. Otherwise, all workers would compile it at the same time.
test: style ## check style and types, run the tests (6 minutes on two cores)
	@$(PY) -m mypy & types=$$!; \
	[ -e $(COMPILED) ] || { $(PY) -m pytest --collect-only -qq >/dev/null 2>&1; touch $(COMPILED); }; \
	$(PY) -m pytest -n auto --dist worksteal; tests=$$?; \
	wait $$types || { echo "mypy found errors: see above" >&2; exit 1; }; exit $$tests

test-all: lint ## like test, but with slow tests, all kill points and more generated examples
	@$(PY) -m pytest -n auto --dist worksteal -m ''

faults: $(VENV)/.stamp-dev ## run all fault tests: kills, full disks, damage, signals (30 minutes; make test runs a sample)
	@HOOKPOINT_FAULTS=all $(PY) -m pytest -n auto --dist worksteal -m '' tests/faults

test-parallel: $(VENV)/.stamp-dev ## run all tests of distributed training, including kills (make test runs a sample)
	@HOOKPOINT_FAULTS=all $(PY) -m pytest -m '' tests/parallel tests/callbacks/weights/test_check_replicas.py tests/examples/test_parallel.py

test-adapters: $(VENV)/.stamp-dev ## test the adapters for other trainers, each in its own environment and some together (LOWEST=1: lowest versions)
	@for host in $(HOSTS); do $(PY) tests/adapters/environment.py $$host $(if $(LOWEST),--lowest) || exit; done

test-remote: $(VENV)/.stamp-dev ## test the mirror against an S3 server on this machine, with kills during uploads (2 minutes)
	@$(PY) tests/remote/environment.py

# GPU_PYTHON=python3 uses that interpreter instead of .venv, for machines without pip. It needs torch, numpy and safetensors.
ifdef GPU_PYTHON
GPU_PY := PYTHONPATH=src $(GPU_PYTHON)
test-gpu bench-gpu:
else
GPU_PY := $(PY)
test-gpu: $(VENV)/.stamp-dev
bench-gpu: $(VENV)/.stamp-bench
endif

test-gpu: ## test compile= and cuda_graph= on a GPU (3 minutes)
	@$(GPU_PY) -m tests.gpu

bench-gpu: ## benchmark a training step on a GPU: bare, as a CUDA graph, compiled and as a CUDA graph (5 minutes)
	@$(GPU_PY) benchmarks/fused_step.py

page: web/node_modules/.stamp ## build the board's page from web/ (needs node and npm)
	@cd web && npm run -s check && npm run -s build

test-board: $(VENV)/.stamp-board web/node_modules/.stamp ## rebuild and test the board's page in a browser (4 minutes; needs node and chromium)
	@cd web && npm run -s check
	@rm -rf build/page && cd web && BOARD_PAGE=../build/page npm run -s build
	@diff -r build/page src/hookpoint/board/page || { echo "the page differs from what web/ builds: run make page" >&2; exit 1; }
	@$(PY) -m pytest -m '' tests/board tests/cli/test_board.py tests/browser

bench-board: $(VENV)/.stamp-board ## benchmark the board in a browser: 1,000 runs, 5 million lines (5 minutes; needs chromium)
	@$(PY) benchmarks/board.py

lint: style ## check style, formatting and types
	@$(PY) -m mypy

style: $(VENV)/.stamp-dev
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check

bench: $(VENV)/.stamp-bench ## benchmark dispatch, driven iterations, start, training steps, memory, saving, long files, many callbacks and live control
	@$(PY) benchmarks/dispatch.py
	@$(PY) benchmarks/driven.py
	@$(PY) benchmarks/start.py
	@$(PY) benchmarks/step_overhead.py
	@$(PY) benchmarks/memory.py
	@$(PY) benchmarks/saving.py
	@$(PY) benchmarks/long_files.py
	@$(PY) benchmarks/limits.py
	@$(PY) benchmarks/live_control.py

bench-parallel: $(VENV)/.stamp-bench ## benchmark a training step on two processes
	@$(PY) benchmarks/parallel.py

bench-peers: $(PEERS)/.stamp-bench ## benchmark dispatch and training steps against other libraries (installs them in .venv-peers)
	@$(PEERS)/bin/python benchmarks/dispatch.py
	@$(PEERS)/bin/python benchmarks/step_overhead.py

docs: $(VENV)/.stamp-docs ## generate the reference pages and build the site in build/site
	@$(PY) docs/make_points.py
	@$(PY) docs/make_callbacks.py
	@$(PY) docs/make_errors.py
	@$(VENV)/bin/zensical build --strict --clean

pictures: $(VENV)/.stamp-dev ## run the demo and redraw the images in the README (1 minute)
	@$(PY) docs/make_pictures.py

board-pictures: $(VENV)/.stamp-board ## take new pictures of the board for the README and the docs (1 minute; needs chromium)
	@$(PY) docs/make_board_pictures.py

clean: ## remove environments, caches and build outputs
	@rm -rf $(VENV) $(PEERS) .venv-adapters .venv-remote web/node_modules build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# pip does not apply -c to isolated builds, so the build backend is installed first and isolation is off. Older versions of pip
# take twice as long to install the rest.
$(VENV)/.stamp-base: $(VENV)/.stamp-venv $(PINNED)
	@$(PY) $(PIP_INSTALL) --upgrade pip
	@$(PY) $(PIP_INSTALL) hatchling
	@touch $@

$(VENV)/.stamp-demo: $(VENV)/.stamp-base
	@echo "setting up $(VENV) for the demo ..."
	@$(PY) $(PIP_INSTALL) --no-build-isolation -e '.[demo]'
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-base
	@echo "setting up $(VENV) for development ..."
	@$(PY) $(PIP_INSTALL) --no-build-isolation -e '.[dev]'
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-base
	@echo "setting up $(VENV) for docs ..."
	@$(PY) $(PIP_INSTALL) --no-build-isolation -e '.[docs,torch]'
	@touch $@

$(VENV)/.stamp-board: $(VENV)/.stamp-dev
	@$(PY) $(PIP_INSTALL) playwright
	@touch $@

# Not `npm ci`, which refuses a lock file that does not list the packages for every platform.
web/node_modules/.stamp: web/package.json web/package-lock.json
	@cd web && npm install --no-save --loglevel=error
	@touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-base
	@echo "setting up $(VENV) for bench ..."
	@$(PY) $(PIP_INSTALL) --no-build-isolation -e '.[plot,tensorboard,torch]' pluggy blinker
	@touch $@

$(PEERS)/.stamp-bench: $(PEERS)/.stamp-venv $(PINNED)
	@echo "setting up $(PEERS) ..."
	@$(PEERS)/bin/python $(PIP_INSTALL) hatchling
	@$(PEERS)/bin/python $(PIP_INSTALL) --no-build-isolation -e '.[plot,tensorboard,torch]' pluggy blinker $(TRAINERS)
	@touch $@

$(VENV)/.stamp-venv $(PEERS)/.stamp-venv:
	@for python in $(CANDIDATES); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        "$$python" -m venv --clear $(@D) && touch $@; exit; \
	    fi; \
	done; \
	echo "hookpoint needs Python 3.11 or later; tried $(CANDIDATES). Run make PYTHON=/path/to/python3.11" >&2; \
	exit 1
