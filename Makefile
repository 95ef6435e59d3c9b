# make run     train on four dies, then sweep every collective, verified
# make test    the whole suite          (make test ARGS="-k words -x" for a part)
# make lint    ruff, cython-lint, mypy, layers, sizes, Cython hints
# make ctest   C tests: plain, ASan+UBSan, TSan, aarch64
# make wheel   dist/*.whl and dist/*.tar.gz
# make build   only the venv and the C core
# make clean   everything that these made
#
# PYTHON=python3.12 chooses the interpreter (3.10 to 3.14), VENV another place.

PYTHON ?= python3
VENV ?= .venv
NPROC ?= 4
ARGS ?=
SWEEP ?= all -b 8 -e 1M -f 8 -w 1 -n 5 -c 1

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RECIPE := pyproject.toml setup.py
SOURCES := $(wildcard strata/_core/*.pyx strata/_core/*.pxd strata/_core/include/*.h strata/_core/checked/*.pyx strata/_core/checked/*.h)
BUILD_NEEDS := 'setuptools>=77' wheel 'cython>=3.1' 'numpy>=2'

.DELETE_ON_ERROR:
.PHONY: help build run test lint ctest wheel clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

build: $(VENV)/built

# An interpreter that is asked for by name replaces a venv made with another; the default never does.
ifneq ($(origin PYTHON),file)
ifneq ($(shell cat $(VENV)/made-with 2>/dev/null),$(PYTHON))
OTHER := other-python
endif
endif
.PHONY: other-python
other-python:

# A change of the recipe reinstalls; a change of the core only recompiles it.
$(VENV)/built: $(RECIPE) $(SOURCES) $(OTHER)
	@if [ ! -e $@ ] || [ -n "$(filter $(RECIPE) $(OTHER),$?)" ]; then $(MAKE) --no-print-directory install; \
	 else echo "== compiling what changed in strata/_core"; $(BIN)/python setup.py -q build_ext --inplace; fi
	@touch $@

.PHONY: install
install:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "make: no $(PYTHON) here; install Python 3.10 to 3.14, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 15) else "make: $(PYTHON) is Python %d.%d, and strata needs 3.10 to 3.14; name another one: make PYTHON=python3.12" % v)'
	@command -v $${CC:-cc} >/dev/null 2>&1 || { echo "make: no C compiler ($${CC:-cc}); install gcc or clang, or set CC" >&2; exit 1; }
	@if [ -z "$(OTHER)" ] && $(BIN)/python -c '' 2>/dev/null; then echo "== keeping $(VENV), $$($(BIN)/python -V)"; else \
	 echo "== making $(VENV) with $$($(PYTHON) -V)"; \
	 $(PYTHON) -m venv --clear $(VENV) || { echo "make: $(PYTHON) -m venv failed; on Debian and Ubuntu: apt install python3-venv python3-dev" >&2; exit 1; }; \
	 echo "$(PYTHON)" >$(VENV)/made-with; fi
	@$(BIN)/python -c 'import os, sys, sysconfig; h = os.path.join(sysconfig.get_path("include"), "Python.h"); sys.exit(0 if os.path.exists(h) else "make: %s is missing; on Debian and Ubuntu: apt install python3-dev" % h)'
	@echo "== installing what the build needs"
	@$(PIP) install -q $(BUILD_NEEDS)
	@echo "== compiling the core and installing strata (editable): some minutes on two CPUs"
	@$(PIP) install -q --no-build-isolation -e '.[test,examples]'

run: build
	@echo "== training on $(NPROC) dies"
	$(BIN)/strata-run -n $(NPROC) examples/train_digits.py
	@echo "== sweep of the collectives on $(NPROC) dies, every result verified"
	$(BIN)/strata-run -n $(NPROC) bench/collectives.py $(SWEEP)

test: build
	$(BIN)/python tools/suite.py $(ARGS)

$(VENV)/linters: $(VENV)/built
	@echo "== installing the linters"
	@$(PIP) install -q $$($(BIN)/python tools/extra.py lint)
	@touch $@

lint: $(VENV)/linters
	$(BIN)/ruff check .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint strata  # it looks for pycodestyle in PATH
	$(BIN)/python -m mypy
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/sz.py
	$(BIN)/python tools/hints.py

ctest: build
	$(BIN)/python tools/ctest.py $(ARGS)

wheel: build
	rm -rf build/lib* build/bdist* dist
	$(PIP) wheel -q --no-deps --no-build-isolation -w dist .
	$(BIN)/python setup.py -q sdist
	@ls -l dist

clean:
	rm -rf $(VENV) build dist .ctest .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	rm -f strata/_core/*.so strata/_core/*.c strata/_core/*.html strata/_core/checked/*.so strata/_core/checked/*.c
	find strata tests tools bench examples -name __pycache__ -prune -exec rm -rf {} +
