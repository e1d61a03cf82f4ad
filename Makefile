# Set-up, the main job and the tests. `make run` and `make test` work on a fresh machine.
SHELL := /bin/bash
PIPELINE ?= textcraft-cpu
PYTHONS := python3.11 python3.12 python3 python
UV := .venv/bin/uv
RUNS := .venv/installed
ENGINE := .venv/engine
TESTS := .venv/installed-for-tests
# uv does not read pip's variables, so a folder of local wheels is passed on to it.
UV_ENVIRONMENT := export UV_FIND_LINKS="$${UV_FIND_LINKS:-$${PIP_FIND_LINKS// /,}}"

.PHONY: run speedrun test test-fast test-nightly install lock

run: $(RUNS) $(ENGINE)
	@.venv/bin/wingspan run $(PIPELINE)

# The record of docs/speedrun.md from a seed that is drawn; SEED=N takes seed N.
speedrun: $(RUNS) $(ENGINE)
	@.venv/bin/python -m bench.speedrun $(if $(SEED),--seed $(SEED))

# Each worker takes whole files. Bytecode is kept, whatever the shell says: without it each worker compiles all
# tests anew, for seconds.
PYTEST = PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest --dist loadfile --no-loadscope-reorder --numprocesses

# Four workers on two cores: tests that wait for processes leave a core idle.
test: install
	@$(PYTEST) 4 -m "not nightly"

# The longest tests, whose parts have quicker ones: a run against servers of Prefect, MLflow, Ray, Redis, S3 and a judge
# at once, the tutorial, a program that is trained on two nodes. They take a quiet machine.
test-nightly: install
	@$(PYTEST) 0 -m nightly

# The quick tests of all areas, without Ray, JVM and browser, with fewer examples of each property; one area alone:
# make test-fast AREA=envs
test-fast: install
	@$(PYTEST) 4 --hypothesis-profile fast -m "not slow and not heavy and not browser and not java" $(AREA:%=tests/%)

install: $(TESTS) $(ENGINE)

# Writes constraints.txt and constraints-gpu.txt. Versions that they already have are kept where they still resolve;
# UPGRADE=1 takes the newest.
lock: $(UV)
	@$(UV_ENVIRONMENT); \
	compile() { \
	  echo uv | $(UV) pip compile pyproject.toml - --extra all --overrides overrides.txt --python-version 3.11 \
	    --no-annotate --quiet $(if $(UPGRADE),--upgrade) --custom-compile-command "make lock" "$$@"; \
	}; \
	compile --extra dev --output-file constraints.txt && \
	compile --extra gpu --python-platform x86_64-manylinux_2_35 --output-file constraints-gpu.txt

# All that is installed is compiled, so that the first commands start quickly. COMPILE= leaves that to the imports:
# tests import a fifth of it.
COMPILE := --compile-bytecode

# The virtual environment, with uv alone. A name on the PATH may be a shim for a version that is not there: each
# candidate must really run.
$(UV):
	@set -e; \
	for candidate in $(PYTHONS); do \
	  if $$candidate -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; \
	  then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11 or 3.12 among $(PYTHONS); install one and run make again" >&2; exit 2; \
	fi; \
	echo "creating .venv with $$($$python --version)"; \
	$$python -m venv --clear .venv; \
	.venv/bin/python -m pip install --quiet --constraint constraints.txt uv

define into_venv
	$(UV_ENVIRONMENT); \
	$(UV) pip install --quiet $(COMPILE) --python .venv/bin/python \
	  --constraint constraints.txt --overrides overrides.txt
endef

$(RUNS): pyproject.toml constraints.txt overrides.txt | $(UV)
	@set -e; \
	echo "installing the pinned packages (a few minutes on a first run)"; \
	$(into_venv) uv --editable .
	@touch $@

$(ENGINE): $(RUNS)
	@echo "compiling the CPU engine"; \
	.venv/bin/python -c "import agents.samplers.cpu.engine, agents.samplers.kernels, tasks.verl.cpu.attention_kernel"
	@touch $@

# What the tests speak to, and what environments need that not every machine can build.
$(TESTS): $(RUNS)
	@set -e; \
	extras=dev; \
	headers="$$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')"; \
	if command -v cc >/dev/null && [ -f "$$headers/Python.h" ]; then extras=$$extras,reasoning-gym; else \
	  echo "no C compiler, or no headers of Python: reasoning-gym, which needs them, is left out"; fi; \
	if command -v c++ >/dev/null; then extras=$$extras,alfworld; else \
	  echo "no C++ compiler: ALFWorld, whose planner needs one, is left out"; fi; \
	echo "installing what tests need"; \
	$(into_venv) --editable ".[$$extras]"
	@touch $@
