# Each target sets up what it needs: `make demo` or `make test` on a fresh checkout is enough.
#
#   make demo          train a 24-layer model with jax.jit and with jitscope, and compare
#   make test          the test suite, without the tests marked slow (MARK= runs them too)
#   make test-matrix   the test suite on every supported JAX version
#   make lint          ruff and pyright
#   make docs          the documentation, into site/
#   make bench         the tiny benchmark suite, its table and its plots (in build/plots)
#   make clean         remove the virtual environments and everything else that can be made again

PYTHON ?= python3
export PYTHON
PYTEST_ARGS ?= -n auto --dist worksteal
MARK ?= not slow
DEMO_ARGS ?=
# JAX version:Python version. JAX 0.10.2 is the last for Python 3.11, and the oldest supported.
MATRIX ?= 0.10.2:3.11 0.11.2:3.12 0.12.0.1:3.12

VENV := .venv/main
RUN := $(VENV)/bin/python
PIP_FLAGS := --quiet --disable-pip-version-check
# Strict: a failure inside jitscope is an error here, where users get a warning and a plain program.
PYTEST = JITSCOPE_STRICT=1 $(1)/bin/python -m pytest $(PYTEST_ARGS) -m "$(MARK)"

.DEFAULT_GOAL := help
.PHONY: help demo test test-matrix test-jax lint docs bench clean

help:
	@sed -n 's/^#   //p' Makefile

# $(call make_venv,directory,python version,pip requirements)
define make_venv
	@python=$$(sh .ci/find-python $(2)) \
	    || { echo "jitscope needs Python $(2); found none (PYTHON=... names one)" >&2; exit 1; }; \
	echo "setting up $(1) with $$("$$python" -V)" >&2; \
	"$$python" -m venv $(1) \
	    || { echo "cannot make a virtual environment (Debian: install python3-venv)" >&2; exit 1; }
	@$(1)/bin/python -m pip install $(PIP_FLAGS) $(3)
endef

# The stamps make an environment depend on pyproject.toml: unchanged, it is used as it is.
$(VENV)/.ready: pyproject.toml
	$(call make_venv,$(VENV),3.11+,-e '.[test]')
	@touch $@

$(VENV)/.lint-ready: $(VENV)/.ready
	@$(RUN) -m pip install $(PIP_FLAGS) -e '.[lint]'
	@touch $@

demo: $(VENV)/.ready
	@$(RUN) -m benchmarks.demo $(DEMO_ARGS)

test: $(VENV)/.ready
	$(call PYTEST,$(VENV))

# A missing interpreter is named and skipped on a developer's machine, and is a failure under
# CI=true, where a version that silently is not tested would count as passing.
test-matrix:
	@failed=; \
	for row in $(MATRIX); do \
	    $(MAKE) --no-print-directory test-jax JAX=$${row%:*} PY=$${row#*:} \
	        || failed="$$failed $${row%:*}"; \
	done; \
	if [ -n "$$failed" ]; then echo "test-matrix: failed on JAX$$failed" >&2; exit 1; fi

test-jax:
	@if sh .ci/find-python $(PY) >/dev/null; then \
	    $(MAKE) --no-print-directory .venv/jax-$(JAX)/.ready JAX=$(JAX) PY=$(PY) \
	    && echo "== JAX $(JAX), Python $(PY)" && $(call PYTEST,.venv/jax-$(JAX)); \
	else \
	    echo "== JAX $(JAX): NOT TESTED, this machine has no Python $(PY)"; \
	    [ "$${CI:-}" != true ]; \
	fi

.venv/jax-$(JAX)/.ready: pyproject.toml
	$(call make_venv,.venv/jax-$(JAX),$(PY),-e '.[test]' jax==$(JAX) jaxlib==$(JAX))
	@touch $@

lint: $(VENV)/.lint-ready
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright --pythonpath $(RUN)

# An environment of its own: the pages are read from the source, so neither JAX nor jitscope is
# installed.
DOCS_PACKAGES = $$($(1)/bin/python -c "import tomllib; \
    print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")

.venv/docs/.ready: pyproject.toml
	$(call make_venv,.venv/docs,3.11+,$(call DOCS_PACKAGES,.venv/docs))
	@touch $@

docs: .venv/docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv/docs/bin/python -m mkdocs build --strict --quiet

$(VENV)/.bench-ready: $(VENV)/.ready
	@$(RUN) -m pip install $(PIP_FLAGS) -e '.[bench]'
	@touch $@

bench: $(VENV)/.bench-ready
	$(RUN) -m benchmarks --suite tiny --repeats 1 --out results.jsonl
	$(RUN) -m benchmarks.compare results.jsonl --plots build/plots

clean:
	rm -rf .venv build dist site .pytest_cache .ruff_cache .hypothesis results.jsonl
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
