# What there is to do with this repository. `make` alone lists it.
# Needs Python 3.11 or later and make. Environments are made with pip, beside this file, and made anew when
# pyproject.toml changes.

PYTHON   ?= python3
BACKENDS := jax tensorflow torch
BACKEND  ?=
TESTS    ?= tests
JOBS     ?= 2
BENCH    ?=
N        ?= 100
SEED     ?= 0
FUZZ     ?=
TO       ?= runs
PROGRAMS ?=
MATRIX   ?=
CAMPAIGN ?=
SITE     ?=

ENV      := .venv
PY       := $(ENV)/bin/python
DEMO_ON  := $(or $(BACKEND),jax)
DEMO_ENV := .venv-demo-$(DEMO_ON)

# TypeScript checks the types in the page's JavaScript; node comes from pip, so that nothing else is needed.
TYPESCRIPT := 5.9.3
TSC        := $(ENV)/typescript-$(TYPESCRIPT)/node_modules/.bin/tsc

# What some people use instead, to be compared with. Without what its own page needs, so that pip leaves torch alone.
TRAINSCOPE := 1.8.1

PIP := -m pip --disable-pip-version-check install $(if $(MAKE_TERMOUT),,--quiet)
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: help demo test mutations endings kills check format bench bench-ui docs clean chromium programs fuzz diagnose matrix campaign wheel site
.DEFAULT_GOAL := help

help: ## List the targets
	@echo 'make TARGET [BACKEND=jax|tensorflow|torch]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_ENV)/.ready ## Train a small model under a scope and look at it (BACKEND=jax, TO=runs)
	@$(DEMO_ENV)/bin/fitscope demo --to '$(TO)' --backend $(DEMO_ON)

test: $(ENV)/.ready chromium ## Run every test, one process per backend (BACKEND=jax: that one; TESTS=tests/store: those)
	@once= failed=; for backend in $(or $(BACKEND),$(BACKENDS)); do \
	  printf '\n—— tests on %s\n' "$$backend"; code=0; \
	  KERAS_BACKEND=$$backend $(PY) -m pytest -n $(JOBS) --dist worksteal $$once $(TESTS) || code=$$?; \
	  if [ $$code -eq 5 ] && [ -n "$${once}$(filter-out tests,$(TESTS))" ]; then code=0; fi; \
	  if [ $$code -ne 0 ]; then failed="$$failed $$backend"; fi; once=--not-once; \
	  if [ $$backend = tensorflow ]; then for alone in tf1 legacy; do code=0; \
	    printf '\n—— tests of %s, in a process of their own\n' "$$alone"; \
	    KERAS_BACKEND=tensorflow $(PY) -m pytest -n $(JOBS) --dist worksteal -m $$alone $(TESTS) || code=$$?; \
	    if [ $$code -ne 0 ] && [ $$code -ne 5 ]; then failed="$$failed $$alone"; fi; \
	  done; fi; \
	done; \
	if [ -n "$$failed" ]; then echo "Tests failed on:$$failed"; exit 1; fi

check: $(ENV)/.ready $(TSC) ## Check style, types and the directions of imports
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(ENV)/bin/lint-imports --no-logo
	PATH="$(abspath $(ENV))/bin:$$PATH" $(TSC) -p jsconfig.json

format: $(ENV)/.ready ## Format the code as `check` wants it
	$(PY) -m ruff format
	$(PY) -m ruff check --fix

mutations: $(ENV)/.ready chromium ## Break central lines one after another and see that a test fails for each (ONLY=queue: those)
	@$(PY) tests/mutations.py $(ONLY)

endings: $(ENV)/.ready ## End small trainings in every way, TRIES times each, and see what is left of them (BACKEND=jax: that one; TRIES=12; WRITE=1: count them in docs/reliability.md)
	@failed=; for backend in $(or $(BACKEND),$(BACKENDS)); do \
	  $(PY) tests/faults/endings.py --backend $$backend --tries $(or $(TRIES),12) $(if $(WRITE),--write) || failed=1; \
	done; test -z "$$failed"

kills: $(ENV)/.ready ## Kill one of two ranks at a random moment, TRIES times, and see what is left (ENGINE=plain|torch|jax, TRIES=50)
	@PYTHONPATH=tests $(PY) tests/multiprocess/kills.py --engine $(or $(ENGINE),plain) --tries $(or $(TRIES),50) --seed $(SEED)

bench: $(ENV)/.ready ## Measure what watching costs, in about an hour (BACKEND=jax: that one; BENCH=--quick: see that it runs)
	-@$(PY) $(PIP) --no-deps trainscope==$(TRAINSCOPE)
	$(PY) bench/growth.py $(findstring --quick,$(BENCH))
	$(PY) bench/ranks.py $(findstring --quick,$(BENCH))
	$(PY) bench/run.py $(if $(BACKEND),--backend $(BACKEND)) $(BENCH)
	$(PY) bench/memory.py $(if $(BACKEND),--backend $(BACKEND)) $(findstring --quick,$(BENCH))
	$(PY) bench/default.py $(if $(BACKEND),--backend $(BACKEND)) $(findstring --quick,$(BENCH))

programs: $(ENV)/.ready ## Train programs written after the Keras examples, with and without a scope (BACKEND=jax: there; PROGRAMS="gan vae": those)
	@cd tests && $(abspath $(PY)) -m programs $(if $(BACKEND),--backend $(BACKEND)) $(PROGRAMS)

# One process at a time unless JOBS is given: a campaign leaves the machine usable.
fuzz: $(ENV)/.ready ## Train random models with and without a scope and compare (BACKEND=jax, N=100: so many, SEED=0: from here on, JOBS=1)
	@PYTHONPATH=tests $(PY) -m fuzz --backend $(or $(BACKEND),jax) --n $(N) --seed $(SEED) \
	  --jobs $(if $(filter command environment,$(origin JOBS)),$(JOBS),1) $(FUZZ)

matrix: ## Try the versions that pyproject.toml promises, each in an environment of its own, in hours (MATRIX="--only newest-jax --python 3.13")
	@$(PYTHON) tests/matrix.py $(MATRIX)

campaign: $(ENV)/.ready ## Attack the store, the readers, the server and trainings at random for MINUTES, or until all is tried; writes docs/reliability.md (SEED=0, MINUTES=60)
	@PYTHONPATH=tests $(PY) -m campaign --write --minutes $(or $(MINUTES),60) --seed $(SEED) $(CAMPAIGN)

wheel: $(ENV)/.ready ## Build the wheel, and check that it works alone in an empty environment
	@$(PY) tests/built_wheel.py

diagnose: $(ENV)/.ready ## Train faulty and healthy programs and score the findings (BACKEND=jax, PART=dev|held_out|later|wild|fresh|outside|unseen|all, SETTING=default|every1|validation, PROGRAMS="relu nan", DIAGNOSE=--judge)
	@PYTHONPATH=tests $(PY) -m diagnosis --backend $(or $(BACKEND),jax) --part $(or $(PART),all) \
	  $(foreach one,$(or $(SETTING),default),--setting $(one)) $(DIAGNOSE) $(PROGRAMS)

docs: $(ENV)/.ready chromium ## Write docs/api.md, draw the pictures in docs/ and run every example and code block in the docs
	KERAS_BACKEND=jax $(PY) docs/make_api.py
	KERAS_BACKEND=jax $(PY) docs/make_pictures.py
	KERAS_BACKEND=jax $(PY) -m pytest -n $(JOBS) --dist worksteal tests/docs

site: $(ENV)/.ready chromium ## Build the docs as a site in site/, with a gallery of five trained runs (SITE=--without-gallery: without it)
	KERAS_BACKEND=$(or $(BACKEND),jax) $(PY) docs/make_site.py $(SITE)

bench-ui: $(ENV)/.ready chromium ## Measure the page: load, tick, reduction, size of a report
	$(PY) bench/ui.py

# The tests look at the page with a real browser. On a machine of one's own it is only named, never installed.
chromium:
	@if [ -z "$$CHROMIUM" ] && ! command -v chromium chromium-browser >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo 'Installing Chromium, once.'; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	  else echo 'The tests in tests/browser need Chromium: apt-get install chromium, or CHROMIUM=/path/to/it'; fi; fi

clean: ## Remove environments and caches (runs stay)
	rm -rf .venv .venv-demo-* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .jax_cache dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip learned about dependency groups in 25.1; what comes with Python may be older.
define make_env
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	@echo 'Making $(1). This takes a few minutes, once.'
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python $(PIP) --upgrade 'pip>=25.1'
endef

$(ENV)/.ready: pyproject.toml
	$(call make_env,$(ENV))
	@$(PY) $(PIP) --editable '.[jax,tensorflow,legacy,torch,objects,tensorboard]' --group check --group test
	@touch $@

$(TSC): | $(ENV)/.ready
	@PATH="$(abspath $(ENV))/bin:$$PATH" npm install --silent --no-audit --no-fund --prefix $(ENV)/typescript-$(TYPESCRIPT) typescript@$(TYPESCRIPT)

.venv-demo-%/.ready: pyproject.toml
	$(call make_env,.venv-demo-$*)
	@.venv-demo-$*/bin/python $(PIP) --editable '.[$*]' $(if $(filter torch,$*),--group torch)
	@touch $@
