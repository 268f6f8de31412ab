# hadal's front doors: `make demo` and `make test` do everything on a fresh Debian 12; `make help` lists the rest.
# JOBS=N limits the build and the tests to N processes; PREFIX is where `make install` goes.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
SOAK_SECONDS ?= 600
export JOBS

HADAL = build/release/bin/hadal
MODEL = models/tiny-v4-vision

.PHONY: help deps deps-dev build demo test test-clients lint format bench install clean debug asan tsan soak fuzz static cuda hip
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

deps: ## install the Debian packages that the build needs, where missing
	@tools/install-deps build

deps-dev: ## also those of lint, format, fuzz and hip
	@tools/install-deps dev

build: deps ## the optimised binary, build/release/bin/hadal, with tests and benchmarks
	@tools/build release

demo: deps ## build, then answer a question and read an image with the bundled model
	@tools/build release hadal
	@echo
	$(HADAL) run $(MODEL) --prompt "What is 17 + 25?"
	@echo
	$(HADAL) run $(MODEL) --image examples/sign.png --show-images --prompt "OCR this image."

test: build ## build, then run all tests
	@tools/run-tests build/release

test-clients: deps ## build, then test the server with OpenAI's and Anthropic's packages and the page in Chromium
	@tools/build release hadal
	@tools/test-clients $(HADAL)

lint: deps-dev ## formatting and clang-tidy, warnings are errors
	@tools/check-format
	@tools/tidy

format: deps-dev ## clang-format the tree in place
	@tools/check-format --fix

bench: build ## run the benchmarks; each prints the limit of the machine beside its result
	@tools/run-benchmarks build/release

debug: deps ## build for a debugger, in build/debug
	@tools/build debug

# A model runs ten times slower under a sanitizer: of the whole-model tests those that reach every path once. Of the
# operators' implementations the reference and the widest: the others are the same sources.
ASAN_UNIT_TESTS = -*cpu_baseline*:*cpu_avx2*:*cpu_avx512*
ASAN_MODEL_TESTS = Served.*:*AllOfItTogether*:*V32Operations*reference*:*V32Operations*amx*:*chat_short*:*image_two*:*rnd_short*:*random_cpu_auto*-*LengthsAndChunks*:*ChunksAroundSpans*:*EveryOffset*:*synthetic_v3:*cpu_baseline_*:*cpu_avx2_*
# Threads meet in the pool, the tokenizer's caches and the parsers; one model run crosses all operators.
TSAN_UNIT_PROGRAMS = library_test base_test guided_test ops_test runtime_test serving_test text_chat_test tokenizer_test
TSAN_UNIT_TESTS = Service.*:HttpServer.*:KvStore*:*Thread*:*thread*:*Concurrent*:*Interleaved*:*Row*cpu_amx*:*Row*cpu_avx2*
TSAN_MODEL_TESTS = Served.*:RequestsV4.AllOfItTogether:*PackedRowsAllOfItTogether/synthetic_v32:*Threads.SameBits/random_cpu_auto*:*AnyCompany*random_cpu_auto*:*UsedBefore/random_cpu_auto*

asan: deps ## tests under the address and undefined-behaviour sanitizers
	@tools/build asan unit_tests golden_tests invariance_tests
	@GTEST_FILTER='$(ASAN_UNIT_TESTS)' tools/run-tests build/asan unit
	@GTEST_FILTER='$(ASAN_MODEL_TESTS)' HADAL_TEST_EMPTY_OK=1 tools/run-tests build/asan golden invariance

tsan: deps ## tests under the thread sanitizer
	@tools/build tsan $(TSAN_UNIT_PROGRAMS) invariance_tests
	@GTEST_FILTER='$(TSAN_UNIT_TESTS)' HADAL_TEST_EMPTY_OK=1 tools/run-tests build/tsan $(TSAN_UNIT_PROGRAMS)
	@GTEST_FILTER='$(TSAN_MODEL_TESTS)' HADAL_TEST_EMPTY_OK=1 tools/run-tests build/tsan invariance

soak: deps ## random arrivals, aborts and lost readers for SOAK_SECONDS each (default 600), under both sanitizers
	@tools/build asan runtime_test
	HADAL_SOAK_SECONDS=$(SOAK_SECONDS) build/asan/bin/runtime_test --gtest_filter=Service.Soak
	@tools/build tsan runtime_test
	HADAL_SOAK_SECONDS=$(SOAK_SECONDS) build/tsan/bin/runtime_test --gtest_filter=Service.Soak

fuzz: deps-dev ## every libFuzzer target for FUZZ_SECONDS each (default 60)
	@tools/build fuzz fuzzers
	@tools/run-fuzzers build/fuzz

static: deps ## one file that runs on any x86-64 Linux: build/static/bin/hadal
	@tools/build static hadal
	@file=build/static/bin/hadal; ! ldd $$file >/dev/null 2>&1 || { echo "$$file is not static" >&2; exit 1; }
	build/static/bin/hadal --version

cuda: deps ## for NVIDIA GPUs, with nvcc of CUDA 13: build/cuda/bin/hadal
	@tools/build cuda hadal

hip: deps-dev ## for AMD GPUs, checked for matrix instructions: build/hip/bin/hadal
	@tools/build hip hadal hadal_platform_amd
	@tools/check-hip-isa

install: build ## copy the binary, libhadal and its headers to PREFIX
	@cmake --install build/release --prefix $(PREFIX)

clean: ## remove build/
	rm -rf build
