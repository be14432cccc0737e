# The commands of this repository. Each sets itself up: a fresh clone needs no step before it, and a
# second run skips what is done. Variables: PYTHON=python3.12 (any >= 3.10), ARGS="..." (passed on).

SHELL  := /bin/sh
PY     := .venv/bin/python
OCTAVO := .venv/bin/octavo
S      := .venv/.stamps
MODEL  := smollm2-135m
ARGS   :=
SANITIZED := tests/kernels/test_cpu.py tests/kernels/test_cpu_kernels.py tests/kernels/test_program.py \
             tests/kernels/test_contract.py tests/kernels/test_cpu_sampling.py \
             tests/kernels/test_quantized.py

# The lock wins over a constraint file that the user's pip configuration may name; -qq leaves only
# errors to print; a relative path, because pip splits the variable at spaces.
PIP = PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install -qq
say = @echo '==> $(1)'

NATIVE := CMakeLists.txt $(shell find csrc -type f)

# An environment belongs to one folder and one interpreter: a copied tree or a removed Python
# starts anew, instead of testing another tree.
ifneq ($(shell [ "$$(cat $(S)/venv 2>/dev/null)" = "$$(pwd -P)" ] && $(PY) -c '' 2>/dev/null && echo ok),ok)
.PHONY: $(S)/venv
endif

unexport PYTHONPATH PYTHONHOME

.PHONY: help demo serve test test-slow sanitize check format bench bench-peers model clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r c t; do printf '%-16s %s\n' "$$c" "$$t"; done

demo: $(S)/octavo model  ## generate for a mixed batch of prompts on a real model
	$(call say,Generating)
	@$(PY) examples/demo.py $(ARGS)

serve: $(S)/octavo model  ## serve the default model over OpenAI's API (ARGS="--port 8001")
	$(call say,Serving)
	@$(OCTAVO) serve $(ARGS)

test: $(S)/test model  ## run the tests (ARGS="tests/core -x" narrows them)
	$(call say,Testing)
	@$(PY) -m pytest -q -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(S)/test model  ## run the long tests
	$(call say,Testing, the long ones)
	@$(PY) -m pytest -q -m slow $(ARGS)

sanitize: $(S)/test  ## the kernel tests under AddressSanitizer and UBSan (GCC)
	$(call say,Building with sanitizers)
	@PATH="$$PWD/.venv/bin:$$PATH" cmake -S . -B build/sanitize -G Ninja -DPython_EXECUTABLE="$$PWD/$(PY)" \
	  -DOCTAVO_SANITIZE=ON -DCMAKE_BUILD_TYPE=Release >/dev/null
	@PATH="$$PWD/.venv/bin:$$PATH" ninja -C build/sanitize --quiet
	$(call say,Testing the kernels)
	@ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libstdc++.so)" \
	  $(PY) scripts/sanitized_tests.py -q -m "not slow" $(or $(ARGS),$(SANITIZED))

check: $(S)/dev  ## lint, formatting and types
	$(call say,Checking)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check -q .
	@$(PY) -m mypy
	@find csrc -name '*.h' -o -name '*.cpp' | xargs .venv/bin/clang-format --dry-run -Werror

format: $(S)/dev  ## put the code into its format
	@$(PY) -m ruff check -q --fix .
	@$(PY) -m ruff format -q .
	@find csrc -name '*.h' -o -name '*.cpp' | xargs .venv/bin/clang-format -i

bench: $(S)/octavo model  ## throughput and latency on this machine
	$(call say,Measuring)
	@$(OCTAVO) bench throughput $(ARGS)
	@$(OCTAVO) bench latency $(ARGS)

bench-peers: $(S)/octavo model  ## other engines beside Octavo (ARGS="--online"; installs several GB)
	$(call say,Measuring)
	@$(PY) benchmarks/peers.py $(ARGS)

model: $(S)/octavo  ## fetch the default model
	@path=$$($(OCTAVO) pull $(MODEL)) && echo "==> Model: $$path"

clean:  ## remove the environment and all that was built (the model cache stays)
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis test-artifacts
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -f octavo/*.so

# ---------------------------------------------------------------- setting up

$(S)/venv:
	@for p in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python3.10 python); do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && found=$$p && break; \
	done; \
	if [ -z "$$found" ]; then \
	  echo 'octavo: no Python 3.10 or newer found$(if $(PYTHON), as $(PYTHON)). Install one (Debian, Ubuntu: apt install python3 python3-venv; Fedora: dnf install python3; macOS: brew install python), or name it: make PYTHON=/path/to/python' >&2; exit 1; \
	fi; \
	if ! "$$found" -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "octavo: $$found has no venv module. Debian, Ubuntu: apt install python3-venv" >&2; exit 1; \
	fi; \
	if ! "$$found" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then \
	  echo "octavo: $$found has no headers (Python.h). Debian, Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel" >&2; exit 1; \
	fi; \
	if ! command -v "$${CXX:-c++}" >/dev/null && ! command -v g++ >/dev/null && ! command -v clang++ >/dev/null; then \
	  echo 'octavo: no C++ compiler found. Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install' >&2; exit 1; \
	fi; \
	echo "==> Creating .venv with $$("$$found" --version)"; \
	rm -rf .venv && "$$found" -m venv .venv && mkdir -p $(S) && pwd -P > $@

$(S)/tools: $(S)/venv constraints.txt
	$(call say,Installing build tools)
	@$(PIP) pip scikit-build-core nanobind cmake ninja
	@touch $@

$(S)/octavo: $(S)/tools pyproject.toml $(NATIVE)
	$(call say,Installing octavo and building its kernels)
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(S)/test: pyproject.toml constraints.txt | $(S)/octavo
	$(call say,Installing what the tests need)
	@$(PIP) --no-build-isolation -e '.[test]'
	@touch $@

$(S)/dev: pyproject.toml constraints.txt | $(S)/octavo
	$(call say,Installing the linters)
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@
