# Everything is done in .venv, which each target sets up by itself; nothing has to be activated.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# What is compiled is kept: else pytest would rewrite its plugins' modules in every process.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
# `make demo` by itself needs a third of what the tests bring; the first target that needs more adds it to the same .venv.
INSTALLED := .venv/installed
ifeq ($(MAKECMDGOALS)$(wildcard .venv/installed),demo)
INSTALLED := .venv/demo
endif
# `make bundle PYTHON=3.12` names the other machine's Python, which need not be here.
BUNDLE_PYTHON := $(or $(filter 3.%,$(PYTHON)),3.12)
ifneq ($(filter 3.%,$(PYTHON)),)
override PYTHON := python3
endif
# Folders with a Makefile of their own that builds C parts; hatch_build.py names the same.
NATIVE := agent/aliquot/agent/native/preload remote/aliquot/remote/native simgpu/aliquot/simgpu/native
SOURCES := $(wildcard agent client common coordinator remote kube console simgpu tests tools bench examples hatch_build.py)

PAGE := console/aliquot/console/static/index.html
PAGE_SOURCES := $(wildcard console/page/*.* console/page/src/* console/page/src/*/*.ts*) tests/console/openapi.json \
    common/aliquot/common/request_fields.json

# Pytest's own arguments, as in: make test ARGS='-k placement'. The coverage gate is for the whole suite alone.
ARGS ?=
COVERAGE = --cov=aliquot.coordinator.core --cov=aliquot.agent.core --cov-report=term --cov-fail-under=$(COVERAGE_MIN)
# Parallel simulations: our floor is a machine with two cores.
JOBS ?= 2
# Parallel test processes: most tests that take long wait for other processes, so twice as many as cores keep those
# busy. Each begins with a part of the folders of its own, so that what a folder shares is rarely started twice.
WORKERS ?= 4
# One second attempt, told in the summary; a run in which many need it fails (docs/decisions/0069).
PYTEST := -m pytest -n $(WORKERS) --dist worksteal --reruns 1
# The tests of remote GPUs need PyTorch and models people use; TORCH=no leaves them out. A newer one brings gigabytes of CUDA packages.
TORCH ?= torch==2.13.0 transformers==5.23.0 accelerate==1.15.0
# What recipes of remote GPUs are written with; each takes the PyTorch that is there.
RECIPES ?= peft==0.21.2 diffusers==0.42.1 lightning==2.6.6 torchmetrics==1.9.0
# Folders of `make lowest`: those whose tests meet each library that we require.
LOWEST ?= $(addprefix tests/,access agent cli client console coordinator journal kube kube_node logins monitoring tracing use)
# Seeds of `make simulate`: each is a pool of 200 nodes for ten minutes (about 90 s of one processor).
SEEDS ?= 200
# Lines and branches of the two pure cores that the tests must reach, in percent.
COVERAGE_MIN ?= 90

.PHONY: help venv proto native page sync dist image bundle release lowest demo test one test-long simulate simulate-mutations mutate fuzz fuzz-remote check format bench bench-against pictures site clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## create .venv with every extra (again when pyproject.toml changes)

# The build's own requirements, by which `make proto` writes the stubs.
.venv/demo: WANTED = '.[pool]' $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')

.venv/installed: WANTED = '.[dev]'
# The lock keeps two makes in one checkout from installing at once; the second then finds the work done.
.venv/installed .venv/demo: pyproject.toml hatch_build.py
	@PYTHON=$(PYTHON) .ci/prerequisites
	@exec 9>.venv.lock; flock 9; \
	if [[ $@ -nt pyproject.toml && $@ -nt hatch_build.py ]]; then exit 0; fi; \
	echo "installing into .venv (a minute or two the first time)"; \
	[[ -x $(BIN)/python ]] || $(PYTHON) -m venv .venv; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable $(WANTED); \
	touch $@

# Only what tests and types need it for waits for PyTorch: not the demonstration, nor what is built.
.venv/torch: .venv/installed
	@$(if $(filter-out no,$(TORCH)),$(BIN)/python -m pip install --quiet --disable-pip-version-check $(filter-out no,$(TORCH)))
	@touch $@

proto: venv ## generate the stubs of proto/aliquot/v1 and the SDK for threads (only what changed)
	@$(BIN)/python hatch_build.py

native: venv ## compile the C parts (only what changed)
	@for part in $(NATIVE); do $(MAKE) --silent -C $$part; done

page: ## build the page of the console, which needs node and npm (without them there is REST alone)
	@if command -v node npm >/dev/null; then $(MAKE) --silent $(PAGE); \
	else echo "without the page, which needs node and npm: apt-get install nodejs npm"; fi

# One build at a time in a checkout; npm's own messages are shown only when it fails.
$(PAGE): $(PAGE_SOURCES)
	@exec 9>.page.lock; flock 9; cd console/page; echo "building the page"; \
	[[ node_modules/.package-lock.json -nt package-lock.json ]] || npm ci --silent; \
	npm run --silent build >.build.log 2>&1 || { cat .build.log >&2; exit 1; }; touch ../../$(PAGE)

sync: proto ## the same, by the name of its other half

dist: venv $(if $(GLIBC),build/tools/installed) ## build what is installed into dist/: for machines as new as this one (GLIBC=2.17: for older ones); dist/any: for any system
	rm -rf dist; PYTHONPATH=build/tools $(BIN)/python -m tools.distributions $(if $(GLIBC),--glibc $(GLIBC))
	@ls dist/*.whl dist/any/*.whl

# What only releases and bundles need: a compiler for old C libraries, and uv.
build/tools/installed: tools/release.txt | venv
	rm -rf build/tools; $(BIN)/python -m pip install --quiet --require-hashes --no-deps --only-binary :all: --target build/tools -r tools/release.txt
	touch $@

bundle: venv build/tools/installed ## everything for a machine without a network in build/bundle (PYTHON=3.12 PLATFORM=manylinux_2_28_x86_64)
	PYTHONPATH=build/tools $(BIN)/python -m tools.bundling --python $(BUNDLE_PYTHON) $(if $(PLATFORM),--platform $(PLATFORM)) $(ARGS)

release: venv build/tools/installed ## build a release twice into build/release, compare, say what it consists of; nothing is published
	PYTHONPATH=build/tools $(BIN)/python -m tools.release $(ARGS)

# A floor in pyproject.toml that nobody tries is a guess: what each extra asks for at its lowest, the tests' own at their newest.
.venv-lowest/installed: pyproject.toml build/tools/installed
	rm -rf .venv-lowest; build/tools/bin/uv venv --quiet --python $(BIN)/python .venv-lowest
	build/tools/bin/uv pip compile --quiet --python .venv-lowest --resolution lowest-direct --extra all pyproject.toml -o build/lowest.txt
	build/tools/bin/uv pip install --quiet --python .venv-lowest --editable '.[dev,all]'
	build/tools/bin/uv pip install --quiet --python .venv-lowest --no-deps --requirement build/lowest.txt
	touch $@

lowest: proto native page .venv-lowest/installed ## run the tests of the programs with the lowest versions that pyproject.toml allows (no PyTorch)
	.venv-lowest/bin/python $(PYTEST) -m 'not slow' $(or $(ARGS),$(LOWEST))

image: dist ## assemble the images' layers into build/image (OCI layouts, with an SBOM each; BASE= a layout of their base)
	for part in coordinator:dist/any daemonset:dist; do rm -rf build/image/$${part%%:*}; \
	$(BIN)/python tools/image.py deploy/$${part%%:*}/Containerfile --wheel $${part##*:}/aliquot-*.whl \
	--out build/image/$${part%%:*} $(if $(BASE),--base $(BASE)) || exit 1; done

demo: proto native page ## start a simulated pool, run real processes in it, break things, show who used what
	$(BIN)/aliquot demo $(ARGS)

test: proto native page .venv/torch ## run the tests, with the coverage gate on the two pure cores
	$(BIN)/python $(PYTEST) -m 'not slow' $(or $(ARGS),$(COVERAGE))

one: proto native .venv/torch ## run the tests of T, without the coverage gate: make one T=tests/ledger (a folder, file or test) K='a word of names'
	@[[ -n "$(T)" ]] || { echo "say which: make one T=tests/ledger" >&2; exit 2; }
	$(BIN)/python -m pytest $(T) $(if $(K),-k '$(K)') $(ARGS)

test-long: proto native page .venv/torch ## run every test, slow ones too, with many more generated examples
	$(if $(filter no,$(TORCH)),,$(BIN)/python -m pip install --quiet --disable-pip-version-check $(RECIPES))
	HYPOTHESIS_PROFILE=thorough $(BIN)/python $(PYTEST) --timeout=1800 $(ARGS)

simulate: proto ## run the whole cluster from SEEDS seeds, with faults, under an auditor (docs/simulation.md)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --jobs $(JOBS) $(ARGS)

simulate-mutations: proto ## break the product in known ways: each must be caught by the simulation
	$(BIN)/python -m tests.simulation --jobs $(JOBS) --mutants $(ARGS)

mutate: proto native ## put mistakes into AREA (access, agent-core, client, console, core, hosting, journal, kube, remote-server, store): do its tests notice? N=80 SEED= of them
	$(BIN)/python -m tools.mutating $(or $(AREA),agent-core) --sample $(or $(N),80) --seed '$(SEED)' --jobs $(JOBS) $(ARGS)

fuzz: proto ## attack a coordinator with mutated messages for MINUTES (2; hours by hand), on the loopback
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),2) --json $(ARGS)

fuzz-remote: proto native .venv/torch ## attack the engines of remote GPUs with FRAMES (1000000) frames each that are nearly right
	$(BIN)/python -m tests.remote_fuzz --frames $(or $(FRAMES),1000000) --json $(ARGS)

# All of them run, so that one look shows everything.
check: proto page .venv/torch ## generated code, lint, formatting, types, layers
	@failed=(); \
	run() { echo "$$*"; "$$@" || failed+=("$$(basename "$$1")"); }; \
	run $(BIN)/ruff check; \
	run $(BIN)/ruff format --check; \
	run $(BIN)/mypy $(SOURCES); \
	run $(BIN)/lint-imports; \
	if (($${#failed[@]})); then echo "failed: $${failed[*]}" >&2; exit 1; fi

format: venv ## apply the formatter and the linter's safe fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: proto native page .venv/torch ## run every benchmark in bench/ for a few seconds each (one JSON line each)
	@for script in $(sort $(wildcard bench/*.py)); do \
	    case $$script in */against.py) continue ;; esac; \
	    echo "== $$script"; $(BIN)/python $$script --json $(ARGS) | tail -n 1; \
	done

bench-against: proto native .venv/torch ## compare the main benchmarks with those of BASE=<commit>, by turns (under 20 minutes; QUICK=1: under five)
	@[[ -n "$(BASE)" ]] || { echo "say what to compare with: make bench-against BASE=<commit>" >&2; exit 2; }
	@$(BIN)/python bench/against.py $(BASE) $(if $(QUICK),--quick) $(ARGS)

pictures: proto native page .venv/installed ## take docs/img's pictures of the page in a real browser (Chromium), of a simulated pool
	$(BIN)/python -m tools.pictures $(ARGS)

site: .venv-site/installed ## build the pages as a site with search into build/site; a link that leads nowhere fails it
	.venv-site/bin/sphinx-build --quiet --fail-on-warning --keep-going docs build/site
	@echo "build/site/index.html"

.venv-site/installed: docs/requirements.txt
	@$(PYTHON) -m venv .venv-site
	@.venv-site/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt
	@touch $@

clean: ## remove .venv, stubs, compiled parts and caches
	@for part in $(NATIVE); do $(MAKE) --silent -C $$part clean; done
	rm -rf console/aliquot/console/static console/page/node_modules console/page/src/api/schema.d.ts .page.lock
	rm -rf .venv .venv.lock .venv-site build dist .mutate .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
	rm -f proto/aliquot/v1/*_pb2.py proto/aliquot/v1/*_pb2.pyi proto/aliquot/v1/*_pb2_grpc.py proto/aliquot/v1/*_pb2_grpc.pyi
	find client/aliquot/client/_sync -name '*.py' ! -name __init__.py ! -name seam.py ! -name leasing.py -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
