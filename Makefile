# Everything a checkout needs; `make` alone says what there is.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CLEAVE_TORCH_ROOT

PRESET ?= release
BUILD := build/$(PRESET)
BIN := $(BUILD)/bin
RANKS ?= 2
STRATEGY ?= FULL_SHARD
# About 2 GB for each compiler.
JOBS ?= $(shell tools/setup.sh jobs)
SOURCES = $(shell find benchmarks cleave.h cmake compat core examples strategies tensor_parallel tests tools \
  -name '*.h' -o -name '*.cc')

.DEFAULT_GOAL := help
.PHONY: help setup configure build train test bench format check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: BENCH_ARGS=--help RANKS=2 STRATEGY=FULL_SHARD PRESET=release JOBS=n CLEAVE_TORCH_ROOT=folder"

setup: ## install what the build needs (apt, .venv); nothing to do the second time
	@tools/setup.sh

configure: setup
	@test -f $(BUILD)/build.ninja -a -z "$(CLEAVE_TORCH_ROOT)" || \
	  cmake --preset $(PRESET) $(if $(CLEAVE_TORCH_ROOT),-DCLEAVE_TORCH_ROOT=$(CLEAVE_TORCH_ROOT))

build: configure ## build everything
	cmake --build --preset $(PRESET) -j $(JOBS)

train: configure ## train a small GPT on RANKS processes of this machine
	cmake --build --preset $(PRESET) -j $(JOBS) --target gpt cleave_run
	$(BIN)/cleave-run -n $(RANKS) $(BIN)/gpt --strategy $(STRATEGY)

test: build ## build and run all tests
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j 1

bench: build ## run the benchmarks on RANKS processes of this machine
	@set -e; for bench in $(BIN)/*_bench; do echo "== $$bench"; $(BIN)/cleave-run -n $(RANKS) $$bench $(BENCH_ARGS); done

format: ## format all sources in place
	@clang-format -i $(SOURCES)

check: ## fail on wrong format and on an include against the layers
	@clang-format --dry-run --Werror $(SOURCES)
	@python3 tools/check_layers.py

clean: ## remove what was built
	rm -rf build
