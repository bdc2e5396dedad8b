# `make demo`, `make demo-metered`, `make serve` and `make test` need Python 3.11 or newer, git, make and a C compiler, and nothing else.
PYTHON ?= python3
# `make test-all` takes these in turn: names or paths. It skips those that are not on the machine.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.runtime-installed
TESTS := $(VENV)/.tests-installed
# More workers than there are processors: a test waits for stores and services as long as it computes. Each begins with tests that
# lie together, and share what is dear; who has ended takes from the others, so that none is long at work alone.
TEST_WORKERS ?= $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 1)")


# What Python compiles is kept: each worker and each command of the tests would compile it anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-metered serve test tests test-research test-times test-lowest test-all test-whole faults bench bench-quick lint docs
.PHONY: pictures proto lock advisories release clean

demo: $(RUN)
	@$(BIN)/dpserve demo

demo-metered: $(RUN)
	@$(BIN)/dpserve demo --metered

serve: $(RUN)
	@$(BIN)/dpserve demo --stay --port $(PORT)

# Types are checked on one processor while the first tests run on the others.
test: $(TESTS)
	@$(MAKE) --no-print-directory -j2 lint tests

tests: $(TESTS)
	@$(BIN)/pytest -q -n $(TEST_WORKERS) --dist worksteal -m "not slow and not research"

# The tests of research/, which is not installed.
test-research: $(TESTS)
	@$(BIN)/pytest -q -n $(TEST_WORKERS) --dist worksteal -m "research and not slow"

# The seconds of each folder and fixture, and the slowest tests.
test-times: $(TESTS)
	@$(BIN)/pytest -q -n $(TEST_WORKERS) --dist worksteal -m "not slow and not research" -p tests.times

# The tests with the lowest versions that pyproject.toml allows.
test-lowest:
	@mkdir -p build && $(PYTHON) deploy/lowest.py > build/lowest.txt
	@$(MAKE) --no-print-directory tests VENV=.venvs/lowest CONSTRAINED="--constraint build/lowest.txt"

# The demonstration and everything, in full, on each of PYTHONS: on two cores about an hour for each of them.
test-all: lint
	@for python in $(PYTHONS); do \
		version=$$($$python -c 'import platform; print(platform.python_version())' 2>/dev/null) || \
			{ skipped="$$skipped $$python"; continue; }; \
		echo "Python $$version:"; \
		$(MAKE) --no-print-directory test-whole PYTHON=$$python VENV=.venvs/$$version && \
			passed="$$passed $$version" || failed="$$failed $$version"; \
	done; \
	echo "passed:$${passed:- none}; failed:$${failed:- none}; not on this machine:$${skipped:- none}"; \
	test -n "$$passed" && test -z "$$failed"

test-whole: $(TESTS)
	@$(BIN)/dpserve demo
	@DPSERVE_FAULTS=full $(BIN)/pytest -q -n $(TEST_WORKERS) --dist worksteal

faults: $(TESTS)
	@DPSERVE_FAULTS=full $(BIN)/pytest tests/faults -q -n0

bench: $(RUN)
	@$(BIN)/python -m benchmarks.serving

bench-quick: $(RUN)
	@$(BIN)/python -m benchmarks.serving --quick

lint: $(TESTS)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy

docs: $(TESTS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# The pictures of README.md and docs/ whose sources changed; those of the pages need Chromium.
pictures: $(TESTS)
	@$(BIN)/python -m research.pictures

# The messages of gRPC, which are committed as they are compiled.
proto: $(TESTS)
	@$(BIN)/python -m grpc_tools.protoc -Iservice/rpc --descriptor_set_out=service/rpc/open_inference.binpb open_inference.proto

# What images are built from: the newest that pyproject.toml allows, in a folder where nothing else is installed. With
# PyTorch and its CUDA libraries this takes some gigabytes.
lock:
	@grep -q "^ARG PYTHON_IMAGE=python:$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')\." Dockerfile || \
		{ echo "set PYTHON to one of the version that the Dockerfile names: others get other packages"; exit 1; }
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/pip install --quiet --disable-pip-version-check '.[grpc,jwt,onnx,otel,texts,torch]'
	@(sed -n 1p deploy/constraints.txt; build/lock/bin/pip freeze --all --exclude dpserve --exclude pip) > build/constraints.txt
	@mv build/constraints.txt deploy/constraints.txt && rm -rf build/lock

# What is known against the versions in use: from a database, or with AUDIT=FILE from an output of
# `pip-audit --format json` that was made elsewhere. pip-audit ends with 1 where it found something.
advisories: $(TESTS)
ifndef AUDIT
	@rm -rf build/advisories && $(PYTHON) -m venv build/advisories
	@build/advisories/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	@build/advisories/bin/pip-audit --format json --no-deps --disable-pip --requirement deploy/constraints.txt \
		--output build/advisories/audit.json || test -s build/advisories/audit.json
endif
	@$(BIN)/python deploy/advisories.py $(or $(AUDIT),build/advisories/audit.json)

# The wheel, and what an image is built from beside it (CycloneDX). It fails where the wheel, installed with pip alone,
# does not train, serve and ask on one of PYTHONS, where something is known against any of what an image is built from,
# and where a package of it could not be looked up, and says which it was. AUDIT=FILE takes an output of `pip-audit
# --format json` that was made elsewhere. The tools lie in a folder of their own.
release:
	@rm -rf build/release dist && $(PYTHON) -m venv build/release
	@build/release/bin/pip install --quiet --disable-pip-version-check build==1.6.1 cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@build/release/bin/python -m build --wheel --outdir dist
	@$(PYTHON) deploy/try_wheel.py dist/*.whl $(patsubst %,--python %,$(PYTHONS))
	@! grep -q '^## .*unreleased' CHANGELOG.md || echo "CHANGELOG.md calls the version unreleased: give it its date"
	@build/release/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-format JSON --output-file dist/dpserve.cdx.json deploy/constraints.txt
ifndef AUDIT
	@build/release/bin/pip-audit --format json --no-deps --disable-pip --requirement deploy/constraints.txt \
		--output build/release/audit.json 2>build/release/audit.log || test -s build/release/audit.json || cat build/release/audit.log
endif
	@build/release/bin/python deploy/release_audit.py deploy/constraints.txt $(or $(AUDIT),build/release/audit.json)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)

$(RUN): pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(TESTS): pyproject.toml | $(VENV)/bin/python
	@echo "installing what the tests need into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINED) -e '.[test]'
	@touch $@ $(RUN)

clean:
	rm -rf $(VENV) .venvs build dist *.egg-info
