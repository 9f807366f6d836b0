# One environment in .venv; no command here needs it activated. `make` alone lists the commands.
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := test

# The first Python from 3.11 on that can make an environment (Debian's own may come without `ensurepip`).
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14 python
CAN_MAKE_VENV := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do "$$p" -c '$(CAN_MAKE_VENV)' 2>/dev/null && { echo "$$p"; break; }; done)

# uv is quick but knows only its own certificates and mirrors unless told; pip, which knows the machine's, is the fallback.
UV := UV_SYSTEM_CERTS=true UV_NATIVE_TLS=true UV_HTTP_RETRIES=1 $(BIN)/uv

.PHONY: help setup demo test lint lab doctor clean
.DELETE_ON_ERROR:

help:
	@echo "make setup    a virtual environment in $(VENV) with everything the lab needs"
	@echo "make demo     the main job: programs, schedules, kernels, 4 ranks, pictures in out/"
	@echo "make test     lint, types, import layers, then every test this machine can run"
	@echo "make lint     ruff, mypy and the import layers alone"
	@echo "make lab      JupyterLab on notebooks/"
	@echo "make doctor   what this machine has, and what will therefore work"
	@echo "make clean    remove $(VENV), out/ and caches"

# An environment that was moved with its folder still points to the old place: the stamp holds the path it was made for.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

setup: $(STAMP)

$(STAMP): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
	  echo "make setup: no Python from 3.11 on that can make a virtual environment was found"; \
	  echo "  rule: one of '$(CANDIDATES)' is Python >= 3.11 with the venv and ensurepip modules"; \
	  echo "  in:   PATH=$$PATH"; \
	  echo "  try:  apt-get install python3-venv, or make setup PYTHON=/path/to/python3.12"; exit 1; fi
	@{ [ ! -e $@ ] || [ "$$(cat $@)" = "$(CURDIR)" ]; } && $(BIN)/python -m pip --version >/dev/null 2>&1 \
	  || { rm -rf $(VENV) && "$(PYTHON)" -m venv $(VENV); }
	@echo "installing coconet_lab and what it needs into $(VENV) (about 350 MB to download the first time)"
	@[ -x $(BIN)/uv ] || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv \
	  || echo "uv is not to be had here: pip does it alone"
	@{ [ -x $(BIN)/uv ] && $(UV) pip install --quiet --python $(BIN)/python --compile-bytecode -e '.[$(EXTRAS)]'; } \
	  || { echo "installing with pip"; \
	       $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'; }
	@echo "$(CURDIR)" > $@

demo: setup
	$(BIN)/coconet-lab demo

lab: setup
	$(BIN)/coconet-lab lab

doctor: setup
	$(BIN)/coconet-lab doctor

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest --tier all

clean:
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
