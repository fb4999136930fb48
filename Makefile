# make demo, make test: all that a newcomer needs. Both install into .venv first, once.
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
JOBS    ?= 2
METHODS ?= fedavg freshbn harmofl
TASK    ?= segmentation
PYTHONS ?=

.PHONY: help demo test test-engines lint bench bench-quick results docs models release-check version install clean

help:
	@echo "make demo    train three ways on five synthetic hospitals; writes demo/report.html"
	@echo "make test    ruff, mypy, the layers of packages and pytest, two files at a time (JOBS=8: eight)"
	@echo "make test-engines   real federations on Flower and NVIDIA FLARE, their faults and guards, and all slow tests; half an hour"
	@echo "make lint    ruff, mypy and the layers of packages only"
	@echo "make docs    the documentation as a site: build/site/index.html; runs the notebooks, and checks every link"
	@echo "make bench   measures every speed that docs/performance.md promises; bench-quick: the most important ones, two minutes"
	@echo "make results the numbers and figures of the pages of results in docs/, from results/"
	@echo "make models DATA=folder   small models of your own or the results' images, exported with their cards: models/"
	@echo "make release-check   wheel and sdist, built twice and compared, tried with every Python found; a bill of materials"
	@echo "make version VERSION=1.2.0   set it in the package, CITATION.cff and CHANGELOG.md, for a release of today"
	@echo "make clean   remove what these commands made"

demo: install
	$(BIN)/harmofl demo --out demo

test: lint
	$(BIN)/pytest -n $(JOBS) --dist loadfile

test-engines: install
	$(BIN)/pytest -m 'engines or long' -n $(JOBS) --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: install
	$(BIN)/python docs/build.py build/site

bench: install
	$(BIN)/python benchmarks/bench.py

bench-quick: install
	$(BIN)/python benchmarks/bench.py --quick

results: install
	$(BIN)/python benchmarks/results_page.py

models: install
	for method in $(METHODS); do \
	  $(BIN)/harmofl train --task $(TASK) --method $$method --data "$(DATA)" --out models/$$method || exit 1; \
	  $(BIN)/harmofl export models/$$method --format onnx || exit 1; \
	done

release-check: install
	$(BIN)/python release/check.py --out dist $(addprefix --python ,$(PYTHONS))

version:
	$(PYTHON) release/set_version.py $(VERSION)

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo models build dist docs/_made .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
