# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Test processes at once; each file runs in one of them.
WORKERS ?= 2

.PHONY: setup demo test test-slow test-ray check format bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $(STAMP)

demo: setup
	$(BIN)/relaygr demo --out out

test: setup
	$(BIN)/python -m pytest -m "not slow and not ray" -n $(WORKERS) --dist loadfile

test-slow: setup
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$$(nproc)} $(BIN)/python -m pytest -m "slow and not ray"

test-ray: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,ray]"
	$(BIN)/python -m pytest -m ray

check: setup
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

bench: setup
	$(BIN)/relaygr bench rank --preset hstu-small --json out/bench-rank-small.json
	$(BIN)/relaygr bench rank --preset hstu-kuairand --json out/bench-rank-kuairand.json
	$(BIN)/relaygr bench cache --quick --json out/bench-cache.json
	$(BIN)/relaygr bench relay --quick --json out/bench-relay.json
	$(BIN)/relaygr bench beam --quick --json out/bench-beam.json
	$(BIN)/relaygr bench linear --quick --json out/bench-linear.json
	$(BIN)/relaygr bench slate --quick --json out/bench-slate.json
	$(BIN)/relaygr bench cluster --quick --json out/bench-cluster.json

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
