# Every command of the project; `make help` lists them. Each target sets up what it needs, so any of them works on a fresh
# clone. Native code goes through tools/build_native.py, Python through one virtual environment (tools/setup.sh).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
.NOTPARALLEL:

VENV ?= .venv
PY := $(VENV)/bin/python
# The cargo profile of the extension and the agent that `make develop` puts into the source tree: `dev` builds fastest and
# checks overflows, `release` is what is measured and shipped.
PROFILE ?= dev
CARGO ?= cargo
# A submission must carry the Cargo.lock it was tested with; while working, cargo may extend it.
LOCKED := $(if $(CI),--locked)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# Arguments for pytest, such as `make test-python ARGS="-k resume -x"`; with `-n 0` tests run one after the other.
ARGS ?=
# Python tests side by side: most of them wait for processes that start. Each takes half a gigabyte.
JOBS ?= $(shell echo $$(($$(nproc) < 8 ? $$(nproc) : 8)))
export VENV

# Tests find the programs of the test kit here.
TESTKIT_BIN = $(abspath $(TARGET_DIR))/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
PYTEST = FORELOAD_TESTKIT_BIN=$(TESTKIT_BIN) $(PY) -m pytest

# pytest exits with 5 when it collected nothing (and with 4 without the directory), which fails nothing.
define pytest
	status=0; if [ -d $(1) ]; then $(PYTEST) $(1) $(2) $(ARGS) || status=$$?; else status=5; fi; \
	if [ $$status -eq 5 ]; then echo "pytest: no tests in $(1)"; elif [ $$status -ne 0 ]; then exit $$status; fi
endef

.PHONY: help
help: ## Lists the commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | awk -F'\t' '{printf "  make %-18s %s\n", $$1, $$2}'

# ---- set-up -----------------------------------------------------------------------------------------------------------

.PHONY: setup develop native testkit lock servers
setup: ## Makes .venv from requirements/dev.lock (first time: 2 minutes, 6 GB), or says what the machine lacks.
	@tools/setup.sh dev

develop: setup native ## Builds what changed and makes `import foreload` work in .venv (PROFILE=dev|release).
	@stamp=$(VENV)/.foreload-editable-$$(cat pyproject.toml setup.py | sha256sum | cut -c1-16); \
	if [ ! -e $$stamp ]; then \
	    FORELOAD_SKIP_NATIVE=1 $(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	    rm -f $(VENV)/.foreload-editable-*; touch $$stamp; \
	fi

native:
	@python=$$(command -v $(PY) || command -v python3); $$python tools/build_native.py --profile $(PROFILE) $(LOCKED) --testkit

# They are built with the extension and the agent, so that their common dependencies are built once.
testkit: native
	@:

lock: ## Resolves requirements/*.in into *.lock again (needs uv).
	@tools/lock.sh

servers: ## Installs independent S3, Google and Azure servers, and a file system suite, for make test-system (needs Go and npm for most; minutes).
	@tools/servers.sh

# ---- tests ------------------------------------------------------------------------------------------------------------

.PHONY: test test-rust test-python test-system test-integrations test-theirs chaos defects
test: setup test-rust test-python ## All tests that need no privilege, GPU or cloud account.

# The extension has no tests of its own in Rust: it could only link with an interpreter. tests/python covers it.
test-rust: ## The Rust tests alone.
	$(CARGO) test $(LOCKED) --workspace --exclude foreload-py --features foreload-testkit/as-tested
	$(CARGO) test $(LOCKED) -p foreload-engine -p foreload-testkit --features shuttle,foreload-testkit/as-tested --lib interleave

test-python: develop testkit ## The Python tests alone (ARGS="-k NAME").
	@$(call pytest,tests/python,-n $(JOBS) --dist worksteal)

test-system: develop testkit wheel ## Processes, mounts, kills, the wheel; skips aloud, or fails with FORELOAD_REQUIRE=fuse,netns,...
	@tools/servers.sh pjdfstest || echo "pjdfstest is left out"
	@$(call pytest,tests/system,-n 2 --dist loadfile)

test-integrations: develop testkit ## Lightning, Accelerate, Transformers, JAX.
	@tools/setup.sh dev integrations
	@$(call pytest,tests/integrations)

test-theirs: develop ## The loader tests of PyTorch and torchdata, with their class and with ours (ARGS="FILE...", from a checkout).
	@$(PY) tools/torch_suite.py $(ARGS)

defects: ## Puts defects back one by one; tests must find each (minutes).
	@python3 tools/defects.py $(ARGS)

chaos: develop testkit ## Faults under many seeds, and the soak (SEEDS=N, SOAK_S=seconds).
	PROPTEST_CASES=$(or $(SEEDS),2000) FORELOAD_CHAOS_SEEDS=$(or $(SEEDS),2000) \
	    $(CARGO) test $(LOCKED) --workspace --exclude foreload-py --release
	@export FORELOAD_CHAOS_S=$(or $(SOAK_S),60); $(call pytest,bench/soak)

# ---- checks -----------------------------------------------------------------------------------------------------------

.PHONY: check check-format check-rust check-layers check-python check-docs check-deny format
check: check-format check-layers check-python check-rust check-docs check-deny ## Format, layers, lint, types, stubs, docs, licences.
	@echo "make check: all passed"

check-format: setup
	$(CARGO) fmt --all --check
	$(VENV)/bin/ruff format --check .

check-layers: setup
	$(PY) tools/check_layers.py

check-python: develop
	$(VENV)/bin/ruff check .
	$(PY) -m mypy
	@if [ -e python/foreload/_core.pyi ]; then $(PY) -m mypy.stubtest foreload._core; else echo "stubtest: no _core.pyi yet"; fi

check-rust:
	$(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings

check-docs: setup
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc $(LOCKED) --workspace --no-deps
	$(PY) tools/check_docs.py

check-deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --locked check; \
	else echo "SKIPPED cargo deny: not installed (cargo install --locked cargo-deny)"; fi

format: setup ## Formats Rust and Python in place.
	$(CARGO) fmt --all
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix-only --quiet .

# ---- the product ------------------------------------------------------------------------------------------------------

.PHONY: wheel wheels docs demo bench figures
docs: native ## Builds the documentation into site/, with the references of package and command; a warning is an error.
	@VENV=.venv-docs tools/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=python .venv-docs/bin/mkdocs --quiet build && echo "documentation: site/index.html"

wheel: setup ## Builds the wheel into dist/ and checks symbols, RPATH, glibc floor, size and tags.
	@rm -rf dist build/lib* build/bdist*
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(PY) tools/check_wheel.py dist/*.whl

wheels: ## The wheels of a release into dist/: glibc 2.28, x86-64, and aarch64 with its Rust target; auditwheel checks them.
	@VENV=.venv-release tools/setup.sh release
	@.venv-release/bin/python tools/release_wheels.py

demo: ## Trains from a bucket on this machine, with the stock loader and with Foreload (under 5 minutes after set-up).
	@$(MAKE) develop testkit PROFILE=release
	@FORELOAD_TESTKIT_BIN=$(abspath $(TARGET_DIR))/release $(PY) examples/demo.py $(ARGS)

bench: ## Every workload beside its peers; results under bench/results/.
	@$(MAKE) develop testkit PROFILE=release
	@tools/setup.sh dev bench
	@FORELOAD_TESTKIT_BIN=$(abspath $(TARGET_DIR))/release $(PY) -m bench $(ARGS)

figures: ## The table of figures: value, bar, verdict, spread (ONLY=w1,rss  ARGS=--json).
	@$(MAKE) develop testkit PROFILE=release
	@tools/setup.sh dev bench
	@FORELOAD_TESTKIT_BIN=$(abspath $(TARGET_DIR))/release $(PY) -m bench.figures $(if $(ONLY),--only $(ONLY)) $(ARGS)

.PHONY: clean
clean: ## Removes everything that was built, but for .venv.
	$(CARGO) clean
	rm -rf build dist out *.egg-info python/*.egg-info python/foreload/_bin python/foreload/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find python tests tools bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
