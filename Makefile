# Every target first sets up what it needs in .venv, once. `make` alone lists them.

BIN := .venv/bin
READY := .venv/.ready
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help set-up demo test check bench docs format clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

set-up: $(READY) ## install Headgate and its tools into .venv

demo: $(READY) ## watch three tenants share an embedded Spark
	@$(BIN)/headgate demo

test: $(READY) ## run the tests and the examples in docstrings, but for the slow ones
	@$(BIN)/python -m pytest -q -m "not slow"

check: $(READY) ## the gate: format, lint, types, imports, tests
	@echo "== format"  && $(BIN)/ruff format --check --quiet --diff .
	@echo "== lint"    && $(BIN)/ruff check --quiet .
	@echo "== types"   && $(BIN)/mypy --no-error-summary
	@echo "== imports" && $(BIN)/lint-imports --no-logo
	@echo "== tests"   && $(BIN)/python -m pytest -q

bench: $(READY) ## measure everything that has a benchmark (an hour)
	@for name in simulator controller sizing reconfigure overhead fidelity tenants slices checkpoint state rescale migrate recovery health hosts; do $(BIN)/headgate bench $$name; done

docs: $(READY) ## write the parts of the docs that come from the code
	@$(BIN)/python tools/docs.py

format: $(READY) ## rewrite the code the way `check` wants it
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

clean: ## remove .venv, caches, build output and .headgate
	@rm -rf .venv .headgate build dist *.egg-info
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name .git -prune -o -type d -name __pycache__ -exec rm -rf {} +

$(READY): requirements.txt pyproject.toml tools/set-up
	@tools/set-up
	@touch $@
