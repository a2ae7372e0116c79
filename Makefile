# Everything happens in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup run test tests lint style types bench campaign mutation docs release lock pictures clean

help:  ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.done  ## a .venv with everything the project needs

$(VENV)/.done: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "amcast needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 setup" >&2; exit 64; }
	$(PYTHON) -m venv $(VENV)
ifdef LOCK
	$(BIN)/python -m pip install --quiet --require-hashes --requirement $(LOCK)
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
else
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24' 'setuptools>=77' wheel
	$(BIN)/python -m pip install --quiet --editable '.[spark,dev]'
endif
	@touch $@

# Tests start hundreds of interpreters: they find their modules compiled, even where the environment forbids a cache.
test: export PYTHONDONTWRITEBYTECODE =
test: style  ## lint, types and every test
	@$(MAKE) --no-print-directory -j 2 types tests

# Three workers on two cores: many tests wait for real processes. tests/conftest.py orders them for it.
tests: setup
	$(BIN)/python -m pytest -n 3 --dist worksteal

run: setup  ## a real cluster on this machine, a killed leader, the trace checked with Spark, a report to open
	$(BIN)/amcast demo

lint: style types  ## style and types

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

bench: setup  ## speed, as ratios measured in one run; benchmarks/ has more
	$(BIN)/python benchmarks/simulator.py

campaign: setup  ## hours of searching: a million spoiled inputs at the wire, random traces, every protocol with thousands of seeds
	$(BIN)/python -m tests.live.wire.wire_fuzz --inputs 1000000
	$(BIN)/python -m tests.pipeline.check.agreement --traces 10000
	$(BIN)/python -m tests.pipeline.check.agreement --traces 200 --seed 100000 --spark
	AMCAST_CAMPAIGN=1 $(BIN)/python -m pytest tests/live/test_faults.py
	$(BIN)/amcast campaign --seeds 0..4999 --out runs/campaign
	@for name in primcast whitebox fastcast multipaxos a-ge; do \
		$(BIN)/amcast torture --minutes 10 --protocol $$name --out runs/torture-$$name-$$(date +%s) || exit 1; \
	done
	@for name in $$($(BIN)/amcast protocols --json | $(BIN)/python -c 'import json, sys; print(*(p["name"] for p in json.load(sys.stdin)))'); do \
		$(BIN)/amcast fuzz --plan plans/members.toml --protocol $$name --seeds 0..2000 || [ $$? -eq 2 ] || exit 1; \
	done

mutation: setup  ## hours of searching: a fixed sample of planted faults, and how many of them fuzzing finds
	$(BIN)/python -m tests.mutation

docs: setup  ## the documentation as a site that needs no network: build/site/index.html
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m docs.site

pictures: setup  ## the pictures of the documentation, from a simulation, a cluster and a sweep on this machine
	$(BIN)/python -m docs.pictures

release: setup  ## a wheel in dist/, the same bytes twice, checked, with its list of components; nothing is uploaded
	$(BIN)/python -m release

lock:  ## release/ci.lock: every package that tests need, with its version and hashes; make setup LOCK=release/ci.lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet 'uv>=0.5'
	build/lock/bin/uv pip compile pyproject.toml release/build.in --extra spark --extra dev --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
		--quiet --output-file release/ci.lock
	sed -i "1i # Every package that the tests need, with hashes; \`make lock\` writes it." release/ci.lock

clean:  ## remove everything that was made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis runs build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
