# Two commands for a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 3

.PHONY: demo test lint types soak bench docs clean

$(BIN)/queuety: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[embedded,rich,dev]'
	@touch $@

demo: $(BIN)/queuety
	$(BIN)/queuety demo

# The tests start thousands of interpreters; what they import is compiled once, whatever the shell would have.
unexport PYTHONDONTWRITEBYTECODE

# Real processes on a shared machine now and then miss a deadline: a failed test is run once more, and counted as a rerun.
# Most tests wait rather than compute, so more of them run at once than there are processors; those that measure go first.
test: $(BIN)/queuety lint types
	$(BIN)/python -m pytest -m "alone and not soak" --reruns 1 -rfER
	$(BIN)/python -m pytest -m "not alone and not soak" --reruns 1 -rfER -n $(JOBS) --dist worksteal

lint: $(BIN)/queuety
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/queuety
	$(BIN)/mypy

soak: $(BIN)/queuety
	$(BIN)/python -m pytest -m soak --timeout=1800

docs: $(BIN)/queuety
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/simulate.py

bench: $(BIN)/queuety
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist build
