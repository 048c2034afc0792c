# `make demo` shows the whole road on this machine; `make test` runs every check. Both can be
# interrupted and run again.
PYTHON ?= python3
ROOT := $(CURDIR)
BIN := $(ROOT)/.venv/bin

# Everything Ansible, pip and matplotlib would keep in a home directory stays in build/.
export ANSIBLE_HOME := $(ROOT)/build/ansible
export ANSIBLE_COLLECTIONS_PATH := $(ROOT)/build/collections
export ANSIBLE_INJECT_FACT_VARS := false
export MPLCONFIGDIR := $(ROOT)/build/matplotlib
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(BIN):$(PATH)

.PHONY: help demo test lint sanity unit runtime benchmark fuzz nvshmem audit molecule-default molecule-fleet molecule-lifecycle collection clean

help:
	@echo "make demo    roll out to this machine with 4 ranks and no GPU; report in build/demo/"
	@echo "make test    every check: lint sanity unit runtime fuzz nvshmem audit"
	@echo "             molecule-default molecule-fleet"
	@echo "make benchmark    plays of the benchmark that fail on purpose, by themselves"
	@echo "make molecule-lifecycle    the long scenario, by itself: upgrades, failures, the way back"
	@echo "make clean   remove build/ and .venv/"

demo: .venv/.demo
	@scripts/demo

test: .venv/.dev
	@scripts/check all

lint sanity unit runtime benchmark fuzz nvshmem audit molecule-default molecule-fleet molecule-lifecycle: .venv/.dev
	@scripts/check $@

collection: .venv/.demo
	@scripts/collection

# Stamps, not the folder, say that an installation finished: an interrupted one is done again.
.venv/.demo: requirements/demo.txt
	@scripts/prerequisites "$(PYTHON)"
	@"$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement $<
	@touch $@

.venv/.dev: requirements/dev.txt requirements/runtime.txt runtime/requirements/build.txt \
    requirements/torch.txt .venv/.demo
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/dev.txt \
	  --requirement requirements/runtime.txt --requirement runtime/requirements/build.txt
	@$(BIN)/python -m pip install --quiet --requirement requirements/torch.txt
	@touch $@

clean:
	rm -rf build .venv
