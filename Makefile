# `make` lists the targets. `make demo` and `make test` need Python 3.11 or newer and make, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements/dev.txt
EMBEDDINGS := .venv-embeddings

.DEFAULT_GOAL := help
.PHONY: help demo test test-embeddings check lint format types imports spell package bench chaos docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk 'BEGIN {FS = ":.*## "} {printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}'

$(STAMP): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Loopwarden needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## watch a small fleet being guarded: broker, worker and agents on this machine, under a minute
	$(BIN)/loopwarden demo

test: $(STAMP) ## run the tests, on Apache Kafka where Java 17 and Maven are, else on the embedded broker
	$(BIN)/python -m pytest

test-embeddings: $(EMBEDDINGS)/.installed ## run the tests that need models of texts (torch, 6 GB, in .venv-embeddings)
	$(EMBEDDINGS)/bin/python -m pytest tests/embeddings -o cache_dir=.pytest_cache/embeddings

$(EMBEDDINGS)/.installed: requirements/embeddings.txt pyproject.toml
	$(PYTHON) -m venv $(EMBEDDINGS)
	$(EMBEDDINGS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/embeddings.txt
	$(EMBEDDINGS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

check: lint types imports spell package ## run everything that continuous integration runs
	$(MAKE) test test-embeddings

lint: $(STAMP) ## look for faults of style, and for files that are not formatted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/python tests/_support/house_rules.py

format: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

types: $(STAMP) ## check the types
	$(BIN)/mypy models detectors runtime streams tests benchmarks

imports: $(STAMP) ## check who imports whom
	$(BIN)/lint-imports --no-cache

spell: $(STAMP) ## look for misspelt words
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs deploy models detectors runtime streams tests benchmarks

package: $(STAMP) ## build the wheel and try it in fresh environments
	$(BIN)/python tests/_support/wheel_check.py

bench: $(STAMP) ## measure speed, memory and latency on Apache Kafka; prints a table, writes build/bench.json
	$(BIN)/python -m benchmarks.bench

chaos: $(STAMP) ## kill, restart and cut off everything for ten minutes; fails if a kill was wrong, lost or broken
	$(BIN)/python -m benchmarks.chaos

docs: $(STAMP) ## generate what is generated in docs/
	$(BIN)/python -m loopwarden_streams.schema_docs --write
	$(BIN)/python -m loopwarden_streams.rule_docs --write
	$(BIN)/python -m loopwarden_streams.metric_page > docs/metrics.md

lock: $(STAMP) ## resolve the locked versions anew
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --extra service --extra demo pyproject.toml requirements/dev.in -o $(LOCK)
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --constraint $(LOCK) --extra service --extra demo --extra embeddings \
		pyproject.toml requirements/dev.in requirements/embeddings.in -o requirements/embeddings.txt

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) $(EMBEDDINGS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
