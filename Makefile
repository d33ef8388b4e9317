# cellfork: `make help` lists what there is to do.
# Needs Python 3.11 or newer, make and git; everything else goes into .venv.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --retries 10 --timeout 60
REPORT := build/report
PYTEST_ARGS ?= -n 2 --dist worksteal
BENCH_ARGS ?= --against jupyter

# The first Python that is new enough; PYTHON=… chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.science ## set everything up and run examples/report.py in a sandbox
	@rm -rf $(REPORT)
	@echo '$$ cellfork run examples/report.py --file examples/data/sales.csv --save $(REPORT)'
	@status=0; \
	$(BIN)/cellfork run examples/report.py --file examples/data/sales.csv --save $(REPORT) || status=$$?; \
	if [ $$status -ne 1 ] || ! ls $(REPORT)/*.png >/dev/null 2>&1; then \
		echo "make demo: expected an error in the last cell, and charts in $(REPORT) (exit code $$status)" >&2; exit 1; fi
	@echo; echo 'The last cell raised, as it was meant to (exit code 1). Saved in $(REPORT):'; ls $(REPORT)

.PHONY: test
test: $(VENV)/.dev ## set everything up and run the tests
	$(BIN)/pytest $(PYTEST_ARGS)

.PHONY: test-security
test-security: $(VENV)/.dev ## run the security tests, as root also as an ordinary user; RECORD=1 writes docs/security-summary.json
	$(BIN)/python scripts/security.py $(if $(RECORD),--record) -- -q

.PHONY: fuzz
fuzz: $(VENV)/.fuzz ## run more than a million inputs through everything that reads what a guest says; FUZZ_ARGS for less
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

.PHONY: fuzz-short
fuzz-short: $(VENV)/.fuzz ## the same for a minute
	$(BIN)/python -m tests.fuzz --runs 60000 --seed 1

.PHONY: fuzz-http
fuzz-http: $(VENV)/.dev ## send a server what its specifications allow and what they do not; FUZZ_HTTP_ARGS for less
	$(BIN)/python scripts/fuzz_http.py $(FUZZ_HTTP_ARGS)

.PHONY: test-security-user
test-security-user: $(VENV)/.dev ## run the security tests as an ordinary user only; `make test` has run them as this one
	$(BIN)/python scripts/security.py --only 'ordinary user' -- -q -n 2 --dist worksteal

.PHONY: mutation-security
mutation-security: $(VENV)/.dev ## remove one control at a time and see a test turn red; RECORD=1 writes the table of docs/threat-model.md
	$(BIN)/python scripts/mutations.py $(if $(RECORD),--record) $(CONTROLS)

.PHONY: venv
venv: $(VENV)/.dev ## create .venv with everything that working on cellfork needs

.PHONY: go
go: $(VENV)/.dev ## build the driver of the Go kernel into .venv
	$(BIN)/cellfork languages --install go

.PHONY: check
check: lint types layers generated docs test ## everything that a change has to pass

.PHONY: lint
lint: $(VENV)/.dev ## look for mistakes and for code that is not formatted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: fmt
fmt: $(VENV)/.dev ## format the code and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: types
types: $(VENV)/.dev ## check the types
	$(BIN)/mypy

.PHONY: layers
layers: $(VENV)/.dev ## check which package may import which
	$(BIN)/lint-imports --no-logo

.PHONY: generate
generate: $(VENV)/.dev ## write the generated files: the sync client, the API reference, the specification of E2B's API
	$(BIN)/python scripts/unasync.py
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/e2b_openapi.py
	$(BIN)/python scripts/e2b_coverage.py --write
	$(BIN)/python scripts/together_openapi.py
	$(BIN)/python scripts/opensandbox_openapi.py

.PHONY: generated
generated: $(VENV)/.dev ## check that the generated files are up to date
	$(BIN)/python scripts/unasync.py --check
	$(BIN)/python scripts/reference.py --check
	$(BIN)/python scripts/stubs.py --check
	$(BIN)/python scripts/e2b_openapi.py --check
	$(BIN)/python scripts/together_openapi.py --check
	$(BIN)/python scripts/opensandbox_openapi.py --check

.PHONY: docs
docs: $(VENV)/.dev ## run the code in the documentation
	$(BIN)/pytest tests/docs

.PHONY: bench
bench: $(VENV)/.dev ## measure, next to Jupyter
	$(BIN)/cellfork bench $(BENCH_ARGS)

.PHONY: parity-together
parity-together: $(VENV)/.dev ## run Together's own package, two generations, against a server
	$(BIN)/python scripts/parity/together.py

.PHONY: parity-opensandbox
parity-opensandbox: $(VENV)/.dev ## run OpenSandbox's own packages, two generations, and LiteLLM against a server
	$(BIN)/python scripts/parity/opensandbox.py

.PHONY: parity-e2b
parity-e2b: $(VENV)/.dev ## run E2B's own packages against the server; PARITY_ARGS names environments, --newest
	$(BIN)/python scripts/parity/e2b.py $(PARITY_ARGS)

.PHONY: kills
kills: $(VENV)/.dev ## kill 2,000 contexts and sandboxes that resist; RECORD=1 writes bench/results/kills-DATE.json
	$(BIN)/python scripts/kills.py $(if $(RECORD),--record) $(KILLS_ARGS)

.PHONY: crashes
crashes: $(VENV)/.dev ## kill an engine and a server 200 times each at random moments; compare what the next one finds with what clients were told
	$(BIN)/python scripts/crashes.py $(CRASHES_ARGS)
	$(BIN)/python scripts/crashes.py --http $(CRASHES_ARGS)

.PHONY: races
races: $(VENV)/.dev ## race 100,000 file operations against racers inside
	$(BIN)/python scripts/races.py $(RACES_ARGS)

.PHONY: clean
clean: ## remove .venv, build output and caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------------------ environments
# A stamp for each environment: made again only when pyproject.toml changes.

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'cellfork needs Python 3.11 or newer, and none was found.' \
		'Install one, or name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "cellfork needs Python 3.11 or newer; $(PYTHON) is older." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) …"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.science: pyproject.toml | $(BIN)/python
	@echo 'Installing cellfork and the science stack …'
	@$(PIP) install --editable '.[science]'
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev
	@$(PIP) install --editable '.[fuzz]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo 'Installing cellfork, the science stack, the languages, the server and the development tools …'
	@$(PIP) install --editable '.[science,languages,server,dev]'
	@touch $@ $(VENV)/.science
