# Each target does all its own set-up: a virtual environment in .venv, installed with constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CONSTRAINTS ?= constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c $(CONSTRAINTS)
BENCHMARKS := imports theory optim muon ranks store polar watch board lab

# What is imported is compiled then, once, and not by pip, which compiles everything.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit docs evidence bench format pins newest oldest clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */  make \1\t/' | expand -t 18

$(READY): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip  # installs faster than the one that Python brings
	$(INSTALL) -e '.[dev]'
	touch $(READY)

demo: $(READY)  ## plan a run, train a small network under watch, and make pages of both
	$(BIN)/equipoise plan --optimizer adamw --lr 3e-4 --wd 0.1 --steps 20000 --schedule cosine --warmup 500
	rm -rf demo/healthy demo/fault
	$(BIN)/python examples/demo.py demo
	$(BIN)/equipoise plan --lr 3e-4 --wd 0.1 --steps 20000 --schedule cosine --warmup 500 --html demo/plan.html
	$(BIN)/equipoise report demo/healthy demo/fault -o demo/report.html
	@echo
	@echo "Open demo/report.html and demo/plan.html in a browser; $(BIN)/equipoise board demo shows them live."

test: lint  ## lint, types, doctests and tests
	$(MAKE) --no-print-directory -j2 types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

unit: $(READY)
	$(BIN)/pytest -n auto --dist worksteal

docs: $(READY)  ## the docs as a site, in site/
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs site
	@echo "Open site/index.html in a browser"

evidence: $(READY)  ## every experiment at `medium`, and the tables of the docs; hours: `equipoise lab list` says how many
	$(BIN)/pytest -n auto --dist worksteal -m evidence
	$(BIN)/python benchmarks/theory_table.py --write
	$(BIN)/python benchmarks/polar_table.py --write
	$(BIN)/python benchmarks/planted.py --write
	$(BIN)/python benchmarks/evidence.py

bench: $(READY)  ## speed, as ratios against peers measured in the same run
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

format: $(READY)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pins: $(READY)  ## write constraints.txt, the versions that are installed in .venv, and hashes.txt, with the index' hashes
	$(BIN)/python .ci/pins.py > $(VENV)/pins.txt
	cp $(VENV)/pins.txt constraints.txt
	$(BIN)/python .ci/pins.py hashes > $(VENV)/hashes.txt
	cp $(VENV)/hashes.txt hashes.txt

newest:  ## the tests with the newest versions that are allowed; with the usual index this takes gigabytes of CUDA
	$(MAKE) --no-print-directory VENV=.venv-newest CONSTRAINTS=/dev/null unit

oldest: $(READY)  ## the tests with the oldest versions that are allowed (torch 2.6); gigabytes, too
	$(BIN)/python .ci/pins.py oldest > $(VENV)/oldest.txt
	$(MAKE) --no-print-directory VENV=.venv-oldest CONSTRAINTS=$(VENV)/oldest.txt unit

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) .venv-newest .venv-oldest demo site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
