# make help lists the targets. Everything lives in .venv and build; `make clean` removes both.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE_SOURCES := $(shell find shim CMakeLists.txt -type f -not -name '*.pyc')
PYTHON_SOURCES := $(shell find controller -type f -not -name '*.pyc')

.DEFAULT_GOAL := help
.PHONY: help setup clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## Create .venv, build the native parts, install penstock and its test tools

$(VENV)/.tools: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@echo "installing build tools, test tools and GPU clients (the first time takes a minute or two)"
	$(BIN)/pip install --progress-bar on --group build --group test --group lint
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(NATIVE_SOURCES) $(PYTHON_SOURCES)
	@echo "building the shim and the simulated GPU, installing penstock into $(VENV)"
	$(BIN)/pip install --quiet --no-build-isolation .
	@touch $@

clean: ## Remove .venv and build
	rm -rf $(VENV) build
