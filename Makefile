# make demo    a first result: set-up, then teach, unlearn, evaluate, report   (make demo ARGS="--method s_npo")
# make test    set-up, then the whole test suite                               (make test ARGS="-k tokens")
# make results-small    the small studies of docs/results.md, made again
# A second call sets nothing up again. On a machine that reaches the public package index, the CPU build of PyTorch comes from
# PyTorch's own index: make demo TORCH_INDEX=URL (pytorch.org, "Get started", names it); without it pip takes what it finds.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
ARGS ?=
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
BIN := $(VENV)/bin
PYTEST = HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-fast check bench results-small docs format wheel clean

demo: $(VENV)/ready-demo
	$(BIN)/excise demo $(ARGS)

test: $(VENV)/ready-test
	$(PYTEST) $(ARGS)

test-fast: $(VENV)/ready-test
	$(PYTEST) -m "not slow" $(ARGS)

check: $(VENV)/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/ready-test
	$(BIN)/python -m benchmarks $(ARGS)

results-small: $(VENV)/ready-test
	$(BIN)/python -m studies.attribution $(ARGS)
	$(BIN)/python -m studies.snr $(ARGS)

docs: $(VENV)/ready-test
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/python -W ignore -m mkdocs build --strict --quiet --site-dir site

format: $(VENV)/ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/ready-test
	$(BIN)/python -m build --wheel --outdir dist

$(VENV)/torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	touch $@

$(VENV)/ready-demo: $(VENV)/torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable ".[nouns]"
	$(BIN)/excise pull smollm2
	touch $@

$(VENV)/ready-test: $(VENV)/torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/excise pull smollm2
	touch $@

clean:
	rm -rf $(VENV) site dist build .pytest_cache .ruff_cache
