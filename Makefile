# `make` lists the targets. Everything runs in .venv, which is made once and again whenever
# setup.py, pyproject.toml or constraints.txt change. Needs Python >= 3.11 and a package index.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
WORKERS ?= 2
ARGS ?=
PYTHON_CANDIDATES ?= python3 python3.11 python3.12 python3.13 python

export TF_CPP_MIN_LOG_LEVEL ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What runs on JAX too: contracts 1-8, in `make test` over a row of each kind, and loops and
# chance; in `make matrix` over all rows, and the tests of every layer.
JAX_SAMPLE := tests/test_contracts.py tests/test_masking.py tests/test_normalizers.py \
	tests/test_recurrent.py tests/test_decoding.py tests/test_hard.py
JAX_TESTS := $(JAX_SAMPLE) tests/test_local.py tests/test_monotonic.py \
	tests/test_extraction.py tests/test_known_failures.py tests/test_positional_scores.py \
	tests/test_self_attention.py tests/test_positions.py \
	tests/test_transformer.py tests/test_pooling.py tests/test_hierarchical.py \
	tests/test_attention_gru.py tests/test_memory.py tests/test_coupled.py tests/test_graph.py \
	tests/test_ensemble.py

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# The first interpreter that really runs (a pyenv shim may not) and brings what a venv needs.
.venv/.made:
	@found=; \
	for python in $(PYTHON_CANDIDATES); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	      >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "keras_attention needs Python >= 3.11 with the venv module; found:" >&2; \
	  for python in $(PYTHON_CANDIDATES); do \
	    "$$python" -c 'import sys; print("  ", sys.executable, sys.version.split()[0])' 2>/dev/null; \
	  done >&2; \
	  echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it:" \
	    "make PYTHON_CANDIDATES=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	if [ ! -x $(BIN)/python ]; then \
	  echo "Making .venv with $$("$$found" --version) ($$found)"; \
	  "$$found" -m venv .venv; \
	fi
	@touch $@

# One line for each package as it comes, so that a long download is seen to be alive.
install = echo "Installing keras_attention[$(1)] into .venv (the first time: some minutes)"; \
	$(BIN)/python -m pip install --no-input -c constraints.txt -e '.[$(1)]' \
	| awk '/^Collecting/ {sub(/[<>=!~;].*/, "", $$2); print "  + " $$2; fflush()}' \
	&& echo ".venv is ready"

.venv/.demo: setup.py pyproject.toml constraints.txt | .venv/.made
	@$(call install,tensorflow$(comma)text$(comma)litert$(comma)plot$(comma)cli)
	@touch $@

.venv/.dev: setup.py pyproject.toml constraints.txt | .venv/.made
	@$(call install,all$(comma)dev)
	@touch $@ .venv/.demo

comma := ,

.PHONY: demo
demo: .venv/.demo  ## train, evaluate and export a small translator (ARGS="--out DIR")
	@$(BIN)/keras-attention demo $(ARGS)

.PHONY: test
test: test-tensorflow test-jax  ## install everything and run the test suite on both backends

.PHONY: test-tensorflow
test-tensorflow: .venv/.dev  ## the test suite on the TensorFlow backend
	KERAS_BACKEND=tensorflow $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m "not slow and not kill" $(ARGS)

.PHONY: test-jax
test-jax: .venv/.dev  ## the contracts of the layers on the JAX backend
	KERAS_BACKEND=jax JAX_ENABLE_X64=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup \
	  -m "not slow and not kill" $(JAX_SAMPLE) $(ARGS)

.PHONY: test-slow
test-slow: .venv/.dev  ## the tests that take minutes
	KERAS_BACKEND=tensorflow $(BIN)/python -m pytest -q -m slow $(ARGS)

.PHONY: kill
kill: .venv/.dev  ## kill trainings at random steps; they must end as if they had not been killed
	KERAS_BACKEND=tensorflow $(BIN)/python -m pytest -q -m kill $(ARGS)

.PHONY: mutants
mutants: .venv/.dev  ## break the code on purpose; tests must notice (ARGS="--only scores.py")
	@PYTHONPATH=tests $(BIN)/python -m mutants --workers $(WORKERS) $(ARGS)

.PHONY: matrix
matrix: .venv/.dev  ## every row and model in every artifact and quantisation, and on JAX; every strategy
	KERAS_BACKEND=tensorflow $(BIN)/python -m pytest -q -n $(WORKERS) --matrix --dist loadgroup \
	  tests/test_contracts_export.py tests/test_export_matrix.py tests/test_recipe_matrix.py $(ARGS)
	KERAS_BACKEND=jax JAX_ENABLE_X64=1 $(BIN)/python -m pytest -q -n $(WORKERS) --matrix \
	  --dist loadgroup $(JAX_TESTS) $(ARGS)
	KERAS_BACKEND=tensorflow $(BIN)/python -m pytest -q --matrix tests/test_same_everywhere.py $(ARGS)

.PHONY: check
check: .venv/.dev  ## lint, formatting and the quick tests of structure
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_packaging.py

.PHONY: format
format: .venv/.dev  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: .venv/.dev  ## run the benchmarks
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

.PHONY: clean
clean:  ## remove builds and caches (.venv and runs/ stay)
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find keras_attention export recipes tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
