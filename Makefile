# make help lists the targets. Everything lives in .venv and build; `make clean` removes both.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TORCH  := build/torch
WHEEL  := build/wheel
NATIVE_SOURCES := $(shell find shim CMakeLists.txt -type f -not -name '*.pyc')
C_SOURCES := $(shell find shim tests bench examples -name '*.[ch]' -not -path '*/stubs/*')
PYTHON_SOURCES := $(shell find controller proto -type f -not -name '*.pyc')

GROUPS := --group build --group test --group kube --group lint

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-torch test-torch-versions test-kube faults cluster-programs first-builds cluster cluster-penstock cluster-down sanitize fuzz soak numba-suite lint format gpu-check gpu-wheels gpu-check-offline bench picture bench-kube bench-fleet bench-slurm gen proto chart newest clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## Create .venv, build the native parts, install penstock and its test tools

$(VENV)/.tools: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@echo "installing build tools, test tools and GPU clients (the first time takes a minute or two)"
	$(BIN)/pip install --progress-bar on $(GROUPS) --constraint constraints.txt
	@touch $@

# One wheel for all environments, so that the native parts are built once.
$(WHEEL)/.built: $(VENV)/.tools $(NATIVE_SOURCES) $(PYTHON_SOURCES)
	@echo "building the shim and the simulated GPU"
	@rm -rf $(WHEEL)
	@$(BIN)/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir $(WHEEL) .
	@touch $@

# pip leaves a package alone that has the version of the wheel, so the second command replaces it.
$(VENV)/.installed: $(WHEEL)/.built
	@echo "installing penstock into $(VENV)"
	@$(BIN)/pip install --quiet --constraint constraints.txt "$$(ls $(WHEEL)/*.whl)[kube,pool,checkpoint,web]"
	@$(BIN)/pip install --quiet --no-deps --force-reinstall $(WHEEL)/*.whl
	@touch $@
	@echo "done: source $(BIN)/activate"

# Made anew when its pins change, and after an installation that was interrupted, which left no file
# .tools. It does not depend on pyproject.toml, which changes more often than 5 GB should.
$(TORCH)/.tools: constraints-torch.txt
	@echo "installing torch for the tests of the virtual card (5 GB; a minute or two)"
	@$(PYTHON) -m tests.support.torch_environment $(TORCH)
	@touch $@

$(TORCH)/.installed: $(TORCH)/.tools $(WHEEL)/.built
	@echo "installing penstock into $(TORCH)"
	@$(TORCH)/bin/pip install --quiet --constraint constraints-torch.txt "$$(ls $(WHEEL)/*.whl)[torch]"
	@$(TORCH)/bin/pip install --quiet --no-deps --force-reinstall $(WHEEL)/*.whl
	@touch $@

demo: setup ## Three programs share one simulated H200 (or the real GPU) under quotas; under two minutes
	$(BIN)/penstock demo

test: setup lint first-builds $(TORCH)/.installed ## Everything that must hold: lint, types, layers, and all tests
	$(TORCH)/bin/pytest -n 2 --durations=10 --durations-min=5
	$(BIN)/pytest -n 5 --durations=25 --durations-min=5 $(PYTEST_ARGS)

test-torch: $(TORCH)/.installed ## The tests that need torch alone (the virtual card)
	$(TORCH)/bin/pytest -n 2 --durations=10 --durations-min=5 $(PYTEST_ARGS)

test-torch-versions: setup ## The virtual card with each supported release of torch, one environment after another (6 GB at a time)
	$(BIN)/python -m tests.support.torch_versions $(PYTEST_ARGS)

test-kube: setup cluster-programs $(TORCH)/.installed ## The tests on a real Kubernetes cluster alone (root)
	$(BIN)/pytest -m kube tests/kube $(PYTEST_ARGS)

faults: setup ## Faults put in one at a time: tests must fail (tests/README.md; ten minutes)
	$(BIN)/python -m tests.faults $(FAULTS)

cluster-programs: setup # What a cluster is started from: once, ten minutes; without it tests skip
	@$(BIN)/python -m tests.kube.cluster build || [ $$? = 2 ]

first-builds: cluster-programs # What takes minutes once, so that no test waits for a compiler
	@$(BIN)/python -m tests.support.first_builds

cluster: setup ## Start a real Kubernetes cluster of two nodes here, and say how to reach it (root)
	@$(BIN)/python -m tests.kube.cluster up

cluster-penstock: setup ## The same with this tree's Penstock installed, simulated GPUs and an image for Pods (root)
	@$(BIN)/python -m tests.kube.support.with_penstock

cluster-down: setup ## Stop it and leave nothing of it behind
	@$(BIN)/python -m tests.kube.cluster down

sanitize: setup ## The shim and the simulated GPU under ASan, UBSan and TSan, in many more programs
	$(BIN)/pytest tests/native tests/sanitize
	$(BIN)/pytest -p tests.sanitize.support.instrumented tests/memory tests/gate/test_patterns.py

fuzz: setup ## libFuzzer on every target, FUZZ_SECONDS (60) each: pages, images, names, rules
	$(BIN)/python -m tests.fuzz.support.fuzzing $(or $(FUZZ_SECONDS),60)

soak: setup $(TORCH)/.installed ## A million slot claims by fork, ten thousand starts, 200 kills of an agent, 200 of a pool, 50 faults of cards on other nodes, honest programs under enforcement, 10,000 random programs (two hours)
	PENSTOCK_SOAK_CLAIMS=1000000 PENSTOCK_SOAK_STARTS=10000 $(BIN)/pytest -s \
	  tests/native/test_native.py tests/memory/test_starts.py -k 'claims_by_fork or thousand_starts or kill_machine'
	PENSTOCK_AGENT_KILLS=50 $(BIN)/pytest tests/agent/test_kills.py
	PENSTOCK_SOAK_SECONDS=300 $(BIN)/pytest tests/enforce/test_normal_use.py
	PENSTOCK_NODE_KILLS=50 $(BIN)/pytest tests/pool_node/test_kills.py tests/suspension/test_killed.py -k at_any_moment
	PENSTOCK_POOL_KILLS=200 $(BIN)/pytest tests/pool_nodes/test_preemption.py tests/pool/test_manager_killed.py -k twice
	PENSTOCK_TEST_MOMENTS=50 $(BIN)/pytest tests/pool_nodes/test_cards_elsewhere.py
	PENSTOCK_RANDOM_PROGRAMS=10000 PENSTOCK_RANDOM_FIRST=$(or $(FIRST),1000) $(BIN)/pytest tests/programs_at_random

numba-suite: setup ## Numba-CUDA's own tests on the simulated GPU, without the shim and with it (20 minutes)
	$(BIN)/python -m tests.conformance.support.numba_suite

lint: $(VENV)/.installed ## ruff, mypy strict, import-linter, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@! grep -rnE --include='*.py' '\bRaises( |$$)|[,;] raises ' controller shim/penstock_shim | grep -v '""".*"""' || { echo 'a docstring of several lines names its errors in a section "Raises:" at its end (CONTRIBUTING.md, Style)'; exit 1; }
	MYPYPATH=shim:controller:proto $(BIN)/mypy
	PYTHONPATH=shim:controller:proto $(BIN)/lint-imports
	@echo 'clang-format: all C sources'; $(BIN)/clang-format --dry-run --Werror $(C_SOURCES)

format: $(VENV)/.installed ## Rewrite Python and C in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_SOURCES)

gpu-check: setup ## Everything that is to be shown on a real GPU, in GPU_CHECK_SECONDS (540); a report in bench/results
	$(BIN)/python -m tests.gpu

gpu-wheels: $(VENV)/.tools ## What gpu-check-offline installs, for GPU_PYTHON (3.12) on x86-64, into build/gpu-wheels
	rm -rf build/gpu-wheels
	$(BIN)/python -m tests.gpu.wheels build/gpu-wheels $(or $(GPU_PYTHON),3.12)

gpu-check-offline: ## gpu-check on a machine without network, from build/gpu-wheels, beside the Python packages that are there
	@test -f build/gpu-wheels/requirements.txt || { echo 'no build/gpu-wheels: run make gpu-wheels GPU_PYTHON=VERSION where there is a network, and carry that folder'; exit 2; }
	$(PYTHON) -m venv --system-site-packages --without-pip build/gpu-venv
	$(PYTHON) -m pip --python build/gpu-venv/bin/python install --quiet --no-index \
	  --find-links build/gpu-wheels --requirement build/gpu-wheels/requirements.txt
	$(PYTHON) -m pip --python build/gpu-venv/bin/python install --quiet --no-deps \
	  --no-build-isolation .
	build/gpu-venv/bin/python -m tests.gpu

picture: setup ## Draw the pictures of the README from real runs (Chromium; three minutes)
	PYTHONPATH=controller $(BIN)/python bench/picture.py docs/top.svg
	$(BIN)/python -m tests.web.support.picture docs/pool-map.png

bench: setup ## All figures as measured on this machine (some twenty minutes)
	$(BIN)/penstock bench

bench-kube: setup ## Pods a second on 500 nodes of 8 devices, nothing given twice (root, a real cluster; ten minutes)
	$(BIN)/python bench/kube_place.py
	$(BIN)/python bench/kube_claims.py

bench-slurm: setup ## Real Slurm beside Penstock: how long urgent work waits, what the suspended hold (root, Debian; two minutes)
	$(BIN)/python -m bench.slurm

bench-fleet: setup ## Processor time of the cluster's parts for 5,000 simulated nodes (three minutes, no cluster)
	$(BIN)/python bench/kube_fleet.py

proto: $(VENV)/.tools ## Rewrite proto/penstock_api/*/*_pb2* from the .proto files
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=proto --pyi_out=proto \
	  --grpc_python_out=proto proto/penstock_api/*/*.proto

gen: $(VENV)/.tools ## Rewrite docs/coverage.md from the headers and hook tables, docs/metrics.md from its table, deploy/crds from the policy's schema
	PYTHONPATH=shim $(BIN)/python -m codegen --native shim/native --page docs/coverage.md
	PYTHONPATH=controller $(BIN)/python -m penstock.node.metering.reference docs/metrics.md
	PYTHONPATH=controller $(BIN)/python -m penstock.kube.controller.crd deploy/crds

chart: ## Rewrite what is generated below deploy/ (HELM names a helm 3)
	HELM=$(or $(HELM),helm) deploy/render.sh deploy

newest: setup $(TORCH)/.installed ## Take the newest releases of all tools and clients into constraints*.txt; then make test
	$(BIN)/pip install --quiet --upgrade --upgrade-strategy eager $(GROUPS)
	{ sed '/^[^#]/d' constraints.txt; $(BIN)/pip freeze --exclude penstock \
	  | sed 's/$$/ ; python_version >= "3.11"/'; } > $(VENV)/newest && mv $(VENV)/newest constraints.txt
	$(TORCH)/bin/pip install --quiet --upgrade --upgrade-strategy eager --group torch "$$(ls $(WHEEL)/*.whl)[torch]"
	{ sed '/^[^#]/d' constraints-torch.txt; $(TORCH)/bin/pip freeze --exclude penstock \
	  | sed 's/$$/ ; python_version >= "3.11"/'; } > $(TORCH)/newest && mv $(TORCH)/newest constraints-torch.txt

clean: ## Remove .venv and build
	rm -rf $(VENV) build
