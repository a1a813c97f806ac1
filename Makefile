# Ordinary make, venv and pip. Every target sets up what it needs; `make help` lists them.
# Another interpreter: make test PYTHON=python3.12 VENV=.venv-3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Released vLLM versions whose scheduler drives us, in a venv of their own.
REAL := .venv-real
RELEASES := 0.31.0 0.32.0
LIVE := 0.32.0
REAL_TESTS := $(filter-out tests/real/test_released_connectors.py,$(wildcard tests/real/test_*.py))

# One extra of the package, or all of them where `make setup` ran.
needs = $(or $(wildcard $(VENV)/installed-dev),$(VENV)/installed-$(1))

export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

.PHONY: help setup conform test patches optimized lint format symbolic explore nightly mutation bench test-gpu bench-gpu
.PHONY: soak coverage wheel-test docs real live clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(VENV)/installed-dev  ## install everything for development into .venv

conform: $(call needs,test)  ## judge the reference, the implementation and a released vLLM
	$(BIN)/auxout conform reference impl vllm==0.31.0

test: $(call needs,test)  ## run the tests
	$(BIN)/python -m pytest

patches: $(call needs,test)  ## verify a handful of patches to released vLLMs
	$(BIN)/python -m pytest tests/patches -m 'not slow'

optimized: $(call needs,test)  ## run the tests of refusals without assert statements
	$(BIN)/python -O -m pytest $(wildcard tests/unit/test_reference*.py tests/unit/test_impl*.py)

lint: $(VENV)/installed-dev  ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/installed-dev  ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

symbolic: $(call needs,symbolic)  ## prove the integer kernel with CrossHair
	$(BIN)/python -m pytest tests/symbolic

explore: $(call needs,conformance)  ## search the models of the whole protocol
	$(BIN)/auxout explore --all

nightly: $(call needs,test)  ## larger models, many more random scenarios, mutants of the spec (long)
	$(BIN)/auxout explore --nightly
	$(BIN)/auxout conform --suite deep reference impl
	$(MAKE) mutation

mutation: $(call needs,test)  ## mutate the spec and see whether the tests notice (long)
	$(BIN)/python tests/quality/mutation/run.py

bench: $(VENV)/installed-dev  ## measure the implementation against its baselines
	$(BIN)/python tests/perf/bench.py

test-gpu: $(call needs,test)  ## run the tests that need a CUDA device
	$(BIN)/python -m pytest tests/gpu

bench-gpu: $(call needs,test)  ## measure capture, snapshot and copy on a CUDA device
	$(BIN)/python tests/gpu/bench.py

soak: $(call needs,test)  ## a million steps of both connectors: memory stays flat, nothing is left, also where rows are kept (long)
	$(BIN)/python tests/soak/soak.py
	$(BIN)/python tests/soak/soak.py --keep

coverage: $(VENV)/installed-dev  ## run the tests, and judge ours, under branch coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage run $(BIN)/auxout conform --suite smoke reference impl
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

wheel-test: $(VENV)/installed-dev  ## build the wheel and use it as a stranger would
	bash tests/quality/test_install.sh $(BIN)/python

docs: $(call needs,docs)  ## build the documentation site into build/docs
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

real: $(REAL)/installed $(RELEASES:%=$(REAL)/vllm-%)  ## let the schedulers of released vLLM versions drive our connectors
	printf '%s\n' $(RELEASES) | xargs -P 2 -I RELEASE env PYTHONPATH=$(REAL)/vllm-RELEASE \
		$(REAL)/bin/python -m pytest -q $(REAL_TESTS)

live: $(REAL)/engine $(REAL)/vllm-$(LIVE)  ## let a real vLLM engine on the CPU bring rows to a training step
	env PYTHONPATH=$(REAL)/engine:$(REAL)/vllm-$(LIVE) $(REAL)/bin/python -m pytest -q tests/real/live

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(REAL) build dist .coverage* .hypothesis .pytest_cache .ruff_cache
	find spec reference impl tests -name __pycache__ -prune -exec rm -rf {} +

# torch with what it needs, then the rest as it is written down.
$(REAL)/installed: tests/real/requirements.txt
	$(PYTHON) -m venv $(REAL)
	$(REAL)/bin/python -m pip install --quiet --disable-pip-version-check -c tests/real/requirements.txt torch
	$(REAL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/real/requirements.txt
	$(REAL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(REAL)/vllm-%: | $(REAL)/installed
	$(REAL)/bin/python tests/real/unpack.py $* $@

# The compiled vLLM comes first on the path; the metadata of a distribution named vllm is the unpacked release's.
$(REAL)/engine: tests/real/live/requirements.txt | $(REAL)/installed
	rm -rf $@.part
	$(REAL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@.part -r $<
	rm -rf $@
	mv $@.part $@

# One venv, one stamp per extra; pip runs one at a time.
.NOTPARALLEL:
$(VENV)/installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
