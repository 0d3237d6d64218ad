# gpu.mk - the tests of simulated GPUs on real ones. SPDX-License-Identifier: Apache-2.0
#
# tests/gpu/README.md: one call each, what it does in which order, and how to take it to a machine without a compiler.

GPU_BIN := $(patsubst tests/sim/%.c,$(TEST_BIN)/gpu/%,$(sort $(wildcard tests/sim/test_*.c)))
$(GPU_BIN): $(TEST_BIN)/gpu/%: $(BUILD)/tests/sim/%.o $(BUILD)/tests/gpu/real.o $(HELP_OBJ) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ -lcmocka $(LDLIBS) -o $@
$(TEST_BIN)/gpu/test_flight: $(BUILD)/launcher/coordinator/hang.o

RESULTS ?= bench/results

.PHONY: gpu-programs
gpu-programs: all cuda-plugin $(GPU_BIN) $(CHECK_BIN)

.PHONY: test-gpu
## test-gpu: every GPU test in one call on a real GPU: [NCCL=DIR of libnccl.so.2 2.30+] [SECONDS=540] [RESULTS=bench/results]
test-gpu: gpu-programs
	$(Q)DSC_BIN=$(abspath $(BIN)) DSC_LIB=$(abspath $(LIB)) tests/gpu/run.sh $(if $(NCCL),--nccl $(NCCL)) \
	    $(if $(SECONDS),--seconds $(SECONDS)) --results $(RESULTS) $(GPU_BIN) $(CHECK_BIN) || { rc=$$?; [ $$rc -eq 77 ] || exit $$rc; }

.PHONY: test-gpu-sim
## test-gpu-sim: what test-gpu does, on simulated GPUs
test-gpu-sim: $(SIM_C_BIN) $(CHECK_SIM_BIN) $(SIM_PROGRAMS)
	$(Q)DSC_BIN=$(abspath $(SIM_DIR))/bin tests/gpu/run.sh --simulate --seconds $(or $(SECONDS),900) $(SIM_C_BIN) $(CHECK_SIM_BIN)

# For a GPU machine without our libraries, a compiler or a network: unpack, then gpu-pack/test-gpu and gpu-pack/bench-gpu.
.PHONY: gpu-pack
## gpu-pack: build/gpu-pack.tar.xz, all that test-gpu and bench-gpu need on another machine: [NCCL=FILE libnccl*.so or .xz]
gpu-pack: gpu-programs $(BUILD)/bench/step_worker
	$(Q)DSC_BIN=$(abspath $(BIN)) DSC_LIB=$(abspath $(LIB)) tests/gpu/pack.sh build/gpu-pack.tar.xz $(if $(NCCL),--nccl $(NCCL)) \
	    $(BUILD)/bench/step_worker $(GPU_BIN) $(CHECK_BIN)
