# make demo   sets itself up and compares CwD with and without BDR on handwritten digits
# make test   sets itself up and runs the whole suite
# A torch of your own: make demo TORCH="torch==2.12.0", or TORCH=/path/to/a.whl; another Python: PYTHON=python3.12

PYTHON ?= python3
TORCH ?= $(shell grep '^torch==' constraints.txt)

BIN := .venv/bin
READY := .venv/.ready-$(shell echo '$(TORCH) $(PYTHON)' | cksum | cut -d' ' -f1)

.PHONY: demo test setup lint format clean help

demo: setup
	@$(BIN)/bdr demo --out demo

# Two workers of one thread each are faster than two threads that wait for each other.
test: setup lint
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

setup: $(READY)

# torch comes first and by name: anything that needs it would otherwise bring the largest build there is.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@rm -f .venv/.ready-* && grep -v '^torch==' constraints.txt > .venv/constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) -c .venv/constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c .venv/constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps timm -c .venv/constraints.txt
	@touch $@

lint: setup
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . && $(BIN)/mypy --no-error-summary

format: setup
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf .venv demo runs dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

help:
	@sed -n 's/^# \(make .*\)/\1/p; s/^# \(A torch.*\)/\1/p' Makefile
