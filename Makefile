# make compare:   set up .venv and run the comparison on a data set that a dependency ships
# make picture:   run the default comparison and keep its figure as docs/first-run.png, the picture of the README
# make docs:      set up .venv with the tools for documents and build the site: build/docs/index.html
# make test:      set up .venv with the development tools and run every check
# make release-check: build the wheel, install it in a fresh environment (build/release), and import, fit, save and list the methods there
# make test-fast: lint, types of the package and the quick tests, under two minutes on two cores: for while you write
#
# Versions are those of constraints.txt. CONSTRAINTS=constraints-lowest.txt takes the oldest that are supported,
# CONSTRAINTS=/dev/null the newest; say 'make clean' before another choice. EXTRAS=dev leaves out the peers that pages are compared with,
# which need newer versions than the oldest.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
CONSTRAINTS ?= constraints.txt
EXTRAS ?= dev,peers
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
OUTPUT ?= comparison
ARGS ?=

.PHONY: help install install-dev compare picture test test-fast suite format lint types tutorials docs wheel release-check bench-smoke clean

help:
	@sed -n 's/^# make/make/p' Makefile

.venv/.compare: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[compare]'
	@touch $@

.venv/.dev-$(EXTRAS): .venv/.compare
	$(PIP) -e '.[$(EXTRAS)]'
	@touch $@

.venv/.docs: .venv/.compare
	$(PIP) -e '.[docs]'
	@touch $@

install: .venv/.compare
install-dev: .venv/.dev-$(EXTRAS)

compare: install
	$(BIN)/pyro-dgp compare --output $(OUTPUT) --resume $(ARGS)

picture: install
	$(BIN)/pyro-dgp compare --output build/first-run --resume
	cp build/first-run/comparison.png docs/first-run.png

test: lint types suite

test-fast: lint
	$(BIN)/mypy pyro_dgp
	$(PYTEST) -m 'not slow' $(ARGS)

suite: install-dev
	$(PYTEST) $(ARGS)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-dev
	$(BIN)/mypy

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tutorials: install-dev
	$(BIN)/python tutorials/build.py

# Links to the pages of other libraries, which needs a connection: make docs ARGS="-t intersphinx"
docs: .venv/.docs
	$(BIN)/python docs/site/build.py $(ARGS)

wheel: install-dev
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

RELEASE := build/release
release-check:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or say make PYTHON=/path/to/python" >&2; exit 1; }
	rm -rf $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/env
	$(RELEASE)/env/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(RELEASE) .
	$(RELEASE)/env/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) $(RELEASE)/*.whl
	$(RELEASE)/env/bin/python -I tests/release.py
	cd $(RELEASE) && env/bin/pyro-dgp methods

bench-smoke: install-dev
	$(BIN)/python -m benchmarks speed --quick

clean:
	rm -rf .venv comparison results build dist
