# The whole house in a few words. Each target sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-dev

# The full data, where it lies beside the project; without it the package's own samples are used.
ifeq ($(origin LENGTHWISE_DATA), undefined)
ifneq ($(wildcard ../shared/data),)
export LENGTHWISE_DATA := $(abspath ../shared/data)
endif
endif

.PHONY: help install test check format bench clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## a virtual environment with the package and its development tools

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

test: $(STAMP) ## every test
	$(BIN)/pytest

check: $(STAMP) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## speed and accuracy figures, printed
	$(BIN)/python benchmarks/lengths.py
	$(BIN)/python benchmarks/workloads.py

clean: ## forget the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache out
