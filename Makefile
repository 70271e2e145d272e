# make compare: set up .venv and run the comparison on a data set that a dependency ships
# make test:    set up .venv with the development tools and run every check
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
OUTPUT ?= comparison
ARGS ?=

.PHONY: help install install-dev compare test format lint types tutorials bench-smoke clean

help:
	@sed -n 's/^# //p' Makefile

.venv/.runtime: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e .
	@touch $@

.venv/.dev: .venv/.runtime
	$(PIP) -e '.[dev,benchmarks,tutorials,parquet]'
	@touch $@

install: .venv/.runtime
install-dev: .venv/.dev

compare: install
	$(BIN)/pyro-dgp compare --output $(OUTPUT) --resume $(ARGS)

test: install-dev lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install-dev
	$(BIN)/mypy

tutorials: install-dev
	$(BIN)/python tutorials/build.py

bench-smoke: install-dev
	$(BIN)/python -m benchmarks speed --quick

clean:
	rm -rf .venv comparison results build dist
