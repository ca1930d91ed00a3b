# Needs make and Python 3.11 or newer; everything else goes into .venv, pinned by requirements/*.txt.
# `make serve` installs what the server needs. Targets for developers install the rest.

PYTHON ?= python3
# .venv has no pip, and is first on the PATH of whoever has read the README: the Python that it was made with installs.
override PYTHON := $(or $(shell $(PYTHON) -c 'import sys; print(sys._base_executable)' 2>/dev/null),$(PYTHON))
ARGS ?=
AGENT ?=

BIN := .venv/bin
PY := $(BIN)/python
RUNTIME := .venv/.runtime
STAMP := .venv/.installed

# uv where it is there, because it takes seconds; otherwise pip, which comes with Python.
UV ?= $(shell command -v uv)

# Tests start hundreds of interpreters, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

STRUCTURE := $(wildcard tests/test_rooms.py tests/test_sleeps.py tests/test_docs.py tests/test_docs_commands.py \
	tests/test_docs_facts.py tests/agents/test_key_tests.py)
QUICK := $(wildcard tests/core tests/contract tests/flows tests/test_rooms.py)

.DEFAULT_GOAL := help
.PHONY: help install serve providers test test-clis test-mcp test-browser quick check format prove bench lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv and install the locked tools and this checkout into it

serve: $(RUNTIME) ## serve AGENT=agent.yaml, or the built-in agent, on 127.0.0.1:8080 (ARGS are passed on)
	@exec $(BIN)/lastgood serve $(AGENT) $(ARGS)

providers: $(RUNTIME) ## install the clients of Anthropic, Google and Amazon Bedrock into .venv
	@echo "Installing the clients into .venv, about 80 MB ..."
	@$(INSTALL) $(LOCKED) -r requirements/providers.txt || $(NO_INDEX)

test: $(STAMP) ## run the test suite (ARGS="-k name" narrows it); `make check` runs the tests of structure and docs
	$(PY) -m pytest --numprocesses=4 --dist=worksteal $(addprefix --ignore=,$(STRUCTURE)) $(ARGS)

test-clis: $(STAMP) ## run the runtime kinds on real agent CLIs, which npm installs into .clis
	$(PY) -m tests.clis.install
	$(PY) -m pytest --numprocesses=2 --dist=worksteal tests/clis $(ARGS)

test-mcp: $(STAMP) ## run agents with the reference MCP servers, which pip and npm install into .mcp
	$(PY) -m tests.mcp.install
	$(PY) -m pytest tests/mcp/test_reference.py $(ARGS)

test-browser: $(STAMP) ## run the console in a real browser (chromium by apt-get, axe-core by npm into .browser)
	$(PY) -m tests.browser.install
	$(PY) -m pytest tests/browser $(ARGS)

quick: $(STAMP) ## run the fast tests on SQLite, in under a minute
	$(PY) -m pytest -q --numprocesses=2 --dist=worksteal -m "not slow" -k "not postgres" $(QUICK) $(ARGS)

check: $(STAMP) ## check format, lint, types, room boundaries and documentation
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PY) -m pytest -q --numprocesses=2 --dist=worksteal $(STRUCTURE)

format: $(STAMP) ## format the code and apply the safe lint fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

prove: $(STAMP) ## prove the promises on real processes (ARGS are passed on)
	$(PY) -m tests.prove $(ARGS)

bench: $(STAMP) ## measure (ARGS are passed on)
	$(PY) -m tests.bench $(ARGS)

# The index address is a fact about one machine, so it stays out of the lock files.
COMPILE = $(BIN)/uv pip compile --quiet --python $(PY) --python-version 3.11 --universal \
	--generate-hashes --no-emit-index-url --no-header $(ARGS)

lock: $(STAMP) ## write requirements/*.txt anew from pyproject.toml (ARGS=--upgrade for newer versions)
	$(COMPILE) pyproject.toml --output-file requirements/run.txt
	$(COMPILE) --group build --constraint requirements/run.txt --output-file requirements/build.txt
	$(COMPILE) pyproject.toml --group dev --all-extras --constraint requirements/run.txt \
		--constraint requirements/build.txt --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --extra providers --constraint requirements/dev.txt \
		--output-file requirements/providers.txt

clean: ## remove .venv, caches and build results
	rm -rf .venv .clis .mcp .browser build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf .coverage .coverage.* coverage.xml htmlcov
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Neither pip nor bytecode is put into .venv: pip of $(PYTHON) installs from outside where it can (22.3 or newer), and
# bytecode is written at the first import, for the modules that are used. The lock files name every package with its
# hash, so nothing is resolved.
PIP = --disable-pip-version-check --no-compile --no-input
ifneq ($(UV),)
VENV = $(PYTHON) -m venv --without-pip .venv
INSTALL = $(UV) pip install --python $(PY)
LOCKED = --require-hashes
else
# Of the checkout itself, warnings and errors stay.
QUIETLY = --quiet
LOCKED = --require-hashes --no-deps
ifeq ($(shell $(PYTHON) -c 'import pip; print(tuple(map(int, pip.__version__.split(".")[:2])) >= (22, 3))' 2>/dev/null),True)
VENV = $(PYTHON) -m venv --without-pip .venv
INSTALL = $(PYTHON) -m pip --python $(PY) install $(PIP)
else
VENV = $(PYTHON) -m venv .venv
INSTALL = $(PY) -m pip install $(PIP)
endif
endif
NO_VENV = { echo "cannot create .venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
NO_INDEX = { echo "cannot install the packages (see above); if no package index can be reached, set PIP_INDEX_URL" \
	"(with uv: UV_DEFAULT_INDEX) to one that can, or PIP_FIND_LINKS (UV_FIND_LINKS) to a folder of wheels" >&2; exit 1; }
CHECKOUT = --no-build-isolation --no-deps -e .

$(RUNTIME): requirements/run.txt requirements/build.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Lastgood needs Python 3.11 or newer, and '$(PYTHON)' is not; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing the server into .venv, about 90 MB (once; this can take a minute) ..."
	@$(VENV) || $(NO_VENV)
	@$(INSTALL) $(LOCKED) -r requirements/run.txt -r requirements/build.txt || $(NO_INDEX)
	@$(INSTALL) $(QUIETLY) $(CHECKOUT) || $(NO_INDEX)
	@echo "$(CURDIR)" > $@

# Programs in .venv name the folder that they were installed in.
WAS := $(shell cat $(RUNTIME) 2>/dev/null)
ifneq ($(WAS),)
ifneq ($(WAS),$(CURDIR))
$(RUNTIME): remove-moved
.PHONY: remove-moved
remove-moved:
	@echo "This checkout was moved from $(WAS): .venv is installed again"
	@rm -rf .venv
endif
endif

$(STAMP): $(RUNTIME) requirements/dev.txt
	@echo "Installing the development tools into .venv, about 500 MB (once) ..."
	@$(INSTALL) $(LOCKED) -r requirements/dev.txt || $(NO_INDEX)
	@touch $@
