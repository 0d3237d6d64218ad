# tests.mk - how tests are built and run. SPDX-License-Identifier: Apache-2.0
#
# tests/unit/test_X.c      one cmocka program each         (suite: unit)
# tests/checkkern/*.c      one program, every kernel       (suite: checkkern)
# tests/dist/test_X.c      several ranks as threads        (suite: dist)
# tests/fuzz/X_fuzz.c      one target each, replays tests/fuzz/corpus/X/ (suite: fuzz)
# tests/cli/test_X.sh      whole programs, TAP on stdout   (suite: cli)
# tests/sim/test_X.*       simulated GPUs, see tests/sim/sim.mk (suite: sim)
# Every program prints TAP ("ok N - name", "not ok N - name", "ok N - name # SKIP why"); tests/run counts.

TEST_BIN   := $(BUILD)/tests
UNIT_SRC   := $(sort $(wildcard tests/unit/test_*.c))
DIST_SRC   := $(sort $(wildcard tests/dist/test_*.c))
UNIT_BIN   := $(UNIT_SRC:tests/%.c=$(TEST_BIN)/%)
DIST_BIN   := $(DIST_SRC:tests/%.c=$(TEST_BIN)/%)
CHECK_SRC  := $(sort $(wildcard tests/checkkern/*.c))
CHECK_BIN  := $(if $(CHECK_SRC),$(TEST_BIN)/checkkern/checkkern)
FUZZ_SRC   := $(sort $(wildcard tests/fuzz/*_fuzz.c))
FUZZ_BIN   := $(FUZZ_SRC:tests/%.c=$(TEST_BIN)/%)
CLI_TESTS  := $(sort $(wildcard tests/cli/test_*.sh))
HELP_OBJ   := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard tests/support/*.c)))

# test_launch_X.c and launch_X_fuzz.c are about the launcher, test_tool_X.c about the tools: their objects are not in the library.
LAUNCH_PARTS := $(filter-out %/dsc_launch.o,$(LAUNCH_OBJ))
$(filter $(TEST_BIN)/unit/test_tool_%,$(UNIT_BIN)): $(filter-out %/dsc.o,$(TOOL_OBJ))
$(filter $(TEST_BIN)/unit/test_launch_%,$(UNIT_BIN)) $(filter $(TEST_BIN)/fuzz/launch_%,$(FUZZ_BIN)): $(LAUNCH_PARTS)

$(UNIT_BIN) $(DIST_BIN): $(TEST_BIN)/%: $(BUILD)/tests/%.o $(HELP_OBJ) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(LDLIBS) -o $@

# The part of the plugin for MPI that has no MPI in it.
$(TEST_BIN)/unit/test_mpi_thread: $(BUILD)/comm/transports/mpi_thread_plugin.o

# The MPI of test_comm_mpi.c: rank 0 finds it beside itself.
$(TEST_BIN)/dist/test_comm_mpi: $(TEST_BIN)/dist/slow/libdsc_mpi.so
$(TEST_BIN)/dist/slow/libdsc_mpi.so: tests/dist/slow_mpi.c comm/transports/mpi_api.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) -std=c17 -O1 -fPIC -shared -Wall $< -o $@

$(FUZZ_BIN): $(TEST_BIN)/%: $(BUILD)/tests/%.o $(BUILD)/tests/fuzz/replay.o $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -o $@

$(CHECK_BIN): $(CHECK_SRC:%.c=$(BUILD)/%.o) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

include tests/sim/sim.mk
include tests/gpu/gpu.mk

.PHONY: test-programs
test-programs: all examples $(UNIT_BIN) $(DIST_BIN) $(CHECK_BIN) $(FUZZ_BIN) $(SIM_BIN) $(CHECK_SIM_BIN) $(SIM_PROGRAMS) $(PLANTED_BIN) \
    $(GPU_BIN) $(EXACT_PTX) $(BUILD)/bench/step_worker

# Every object of test-programs that CC compiles, for `make lint`: a second compiler needs no programs.
PROGRAM_SRC := $(UNIT_SRC) $(DIST_SRC) $(CHECK_SRC) $(FUZZ_SRC) tests/fuzz/replay.c tests/gpu/real.c $(wildcard examples/*.c) \
    bench/step_worker.c bench/bench_adam.c bench/adam_export.c bench/bench_comm.c bench/bench_io.c bench/sft_pack.c \
    $(if $(HTTP_PLUGIN),engine/monitor/http_plugin.c) $(if $(WEB_PLUGIN),engine/monitor/web_plugin.c) \
    $(if $(NVTX_PLUGIN),engine/profile/nvtx_plugin.c) comm/transports/mpi_thread_plugin.c
SIM_TEST_OBJ := $(patsubst %.cc,$(BUILD)/%.o,$(SIM_TESTS)) $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard tests/sim/test_*.c)))
.PHONY: test-objects
test-objects: $(LIB_OBJ) $(TRAIN_OBJ) $(TOOL_OBJ) $(LAUNCH_OBJ) $(HELP_OBJ) $(PROGRAM_SRC:%.c=$(BUILD)/%.o) $(SIM_OBJ) $(SIM_TEST_OBJ) \
    $(CUDA_SIM_OBJ) $(PLANTED:%=$(BUILD)/tests/sim/planted/%.o) $(TEST_BIN)/dist/slow/libdsc_mpi.so

# Settings of the sanitizers' run time (tests/README.md); the caller's own options come last and win. A malloc of more than
# there is gives NULL, as everywhere.
SANENV_address := ASAN_OPTIONS="allocator_may_return_null=1 $$ASAN_OPTIONS"
SANENV_undefined := UBSAN_OPTIONS="print_stacktrace=1 $$UBSAN_OPTIONS"
SANENV_thread  := TSAN_OPTIONS="allocator_may_return_null=1 suppressions=$(abspath tests/tsan.supp) $(if \
                  $(findstring clang,$(COMPILER)),ignore_noninstrumented_modules=1 )$$TSAN_OPTIONS"
SANENV         := $(if $(SAN),DSC_TEST_TIMEOUT=$${DSC_TEST_TIMEOUT:-1800} $(foreach s,$(SANITIZERS),$(SANENV_$(s))))

.PHONY: test
## test: everything that a commit must pass on a CPU-only machine; ends with "N passed, N failed"
test: deps-test
	@began=$$(date +%s); $(MAKE) --no-print-directory $(EVERY_CORE) test-programs && \
	    echo "build=$$(($$(date +%s) - began))" >$(BUILD)/build-seconds
	@DSC_TIMES="$$DSC_TIMES $$(cat $(BUILD)/build-seconds)" \
	    DSC_BIN=$(abspath $(BIN)) DSC_LIB=$(abspath $(LIB)) DSC_SIM=$(abspath $(SIM_DIR)) DSC_SAN=$(SAN) \
	    DSC_PTX="$(abspath $(EXACT_PTX))" $(SANENV) tests/run \
	    unit $(UNIT_BIN) -- checkkern $(CHECK_BIN) -- dist $(DIST_BIN) -- fuzz $(FUZZ_BIN) -- sim $(CHECK_SIM_BIN) $(SIM_BIN) $(SIM_TEXTS) \
	    -- cli $(CLI_TESTS)

# The fuzz targets alone: `make test` runs them too.
.PHONY: test-fuzz
test-fuzz: $(FUZZ_BIN)
	@DSC_SAN=$(SAN) $(SANENV) tests/run fuzz $(FUZZ_BIN)

.PHONY: test-night
## test-night: the same with the long sweeps: more seeds, kills and deaths; fuzz targets a million times each, sanitized
test-night:
	@for san in address undefined; do DSC_TEST_NIGHT=1 DSC_TEST_TIMEOUT=$${DSC_TEST_TIMEOUT:-3600} \
	    $(MAKE) --no-print-directory SAN=$$san test-fuzz || exit 1; done
	@DSC_TEST_NIGHT=1 DSC_TEST_TIMEOUT=$${DSC_TEST_TIMEOUT:-3600} $(MAKE) --no-print-directory test

.PHONY: checkkern
## checkkern: check every kernel variant: make checkkern [FN='adamw*'] [SEED=7]
checkkern: $(CHECK_BIN)
	$(Q)$(CHECK_BIN) $(if $(FN),--fn '$(FN)') $(if $(SEED),--seed $(SEED))

.PHONY: checkkern-sim
## checkkern-sim: check every CUDA kernel on a simulated GPU: make checkkern-sim [FN='adamw*'] [SEED=7]
checkkern-sim: $(CHECK_SIM_BIN)
	$(Q)$(CHECK_SIM_BIN) $(if $(FN),--fn '$(FN)') $(if $(SEED),--seed $(SEED))

# libFuzzer searches from the corpus; what it finds stays in build/fuzz/, a crash becomes a corpus file with its fix.
.PHONY: fuzz
## fuzz: search for crashes with clang: make fuzz TARGET=json [SECONDS=60]
fuzz:
	$(if $(TARGET),,$(error TARGET is one of $(patsubst tests/fuzz/%_fuzz.c,%,$(FUZZ_SRC))))
	$(Q)$(MAKE) --no-print-directory CC=clang SAN=address BUILD=build/fuzz \
	    EXTRA_CFLAGS=-fsanitize=fuzzer-no-link,undefined build/fuzz/lib/libdsc.a build/fuzz/tests/fuzz/$(TARGET)_fuzz.o \
	    $(patsubst $(BUILD)/%,build/fuzz/%,$(LAUNCH_PARTS))
	$(Q)clang -fsanitize=fuzzer,address,undefined -fopenmp build/fuzz/tests/fuzz/$(TARGET)_fuzz.o \
	    $(patsubst $(BUILD)/%,build/fuzz/%,$(LAUNCH_PARTS)) build/fuzz/lib/libdsc.a $(LDLIBS) -o build/fuzz/$(TARGET)
	$(Q)mkdir -p build/fuzz/corpus/$(TARGET)
	$(Q)build/fuzz/$(TARGET) -max_total_time=$(or $(SECONDS),60) -max_len=4096 -rss_limit_mb=2048 \
	    -artifact_prefix=build/fuzz/$(TARGET)- build/fuzz/corpus/$(TARGET) tests/fuzz/corpus/$(TARGET)
