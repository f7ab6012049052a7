# Every target first sets up what it needs in .venv, once. `make` alone lists them.

BIN := .venv/bin
READY := .venv/.ready
# Four workers for two cores, because tests also wait. All tests of a group (tests/conftest.py) run in one worker, in their order.
PYTEST := $(BIN)/python -m pytest -q -n 4 --dist loadscope --no-loadscope-reorder
# A link that leads nowhere, or a page that the navigation does not list, fails the build. --quiet would let them pass.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
MAKEFLAGS += --no-print-directory
# Hundreds of processes import Headgate during the tests; without bytecode on disk each of them compiles it first.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help set-up servers demo test check explore bench docs format clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

set-up: $(READY) ## install Headgate and its tools into .venv

servers: ## install the Debian servers and the browser that some slow tests use, without starting them
	@tools/set-up servers

demo: $(READY) ## watch three tenants share an embedded Spark
	@$(BIN)/headgate demo

test: $(READY) ## run the tests and the examples in docstrings, but for the slow ones
	@$(PYTEST) -m "not slow"

check: $(READY) ## the gate: format, lint, types, imports, docs, tests
	@echo "== format"  && $(BIN)/ruff format --check --quiet --diff .
	@echo "== lint"    && $(BIN)/ruff check --quiet .
	@echo "== types"   && $(BIN)/mypy --no-error-summary
	@echo "== imports" && $(BIN)/lint-imports --no-logo
	@echo "== docs"    && site=$$(mktemp -d) && trap 'rm -rf "$$site"' EXIT && $(SITE) --site-dir "$$site"
	@echo "== tests"   && $(PYTEST) -m "not slow"
	@echo "== slow tests, one at a time" && $(BIN)/python -m pytest -q -m slow

explore: $(READY) ## run the property tests with new examples for MINUTES=30; SEED=N repeats a round
	@tools/explore

bench: $(READY) ## measure everything that has a benchmark in an hour; results in out/bench
	@$(BIN)/headgate bench all

docs: $(READY) ## write the generated parts of the docs, and build the site into build/site
	@$(BIN)/python tools/docs.py
	@$(SITE) --site-dir build/site

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
