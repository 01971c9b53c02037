# Every target makes its own environment, .venv, when it is missing or older than pyproject.toml.

VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13 python3.14,$(shell $(p) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(p))))

.PHONY: demo test lint bench

demo: $(INSTALLED)
	$(BIN)/nkijax run examples/dynamic_loops.py

test: $(INSTALLED) # the lint beside the tests: together they fill two cores
	@$(MAKE) -s lint > $(VENV)/lint.txt 2>&1 & lint=$$!; \
	$(BIN)/python -m pytest -q -n 2 --dist worksteal; tests=$$?; \
	wait $$lint; lint=$$?; cat $(VENV)/lint.txt; test $$tests = 0 && test $$lint = 0

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(INSTALLED)
	$(BIN)/python -m bench.run

$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "needs Python 3.11 or later; name one: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,dev]'
	touch $(INSTALLED)
