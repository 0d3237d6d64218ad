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

# kernel_trace.so needs CUPTI, which is a part of CUDA's toolkit that not everybody installs. Its records are those of CUDA 13.
CUPTI       := $(if $(BUILD_CUDA),$(patsubst %/include/cupti.h,%,$(firstword $(wildcard $(CUDA_WHEELS)/nvidia/cu13/include/cupti.h \
               $(patsubst %/bin/nvcc,%/include/cupti.h,$(realpath $(NVCC))) /usr/local/cuda/include/cupti.h))))
CUPTI       := $(if $(CUPTI),$(if $(shell grep -l CUpti_ActivityKernel10 $(CUPTI)/include/cupti_activity.h 2>/dev/null),$(CUPTI)))
TRACE_SO    := $(if $(CUPTI),$(TEST_BIN)/gpu/kernel_trace.so)
$(TEST_BIN)/gpu/kernel_trace.so: tests/gpu/kernel_trace.c
	@mkdir -p $(@D)
	$(Q)cp -L $(firstword $(wildcard $(CUPTI)/lib*/libcupti.so.13)) $(@D)
	$(Q)$(CC) -O2 -Wall -Wextra -std=c11 -fPIC -shared -fvisibility=hidden -isystem $(CUPTI)/include $< $(@D)/libcupti.so.13 \
	    -Wl,-rpath,'$$ORIGIN' -o $@

DAY_FLAGS = $(if $(NCCL),--nccl $(NCCL)) $(if $(PYTHON),--python $(PYTHON)) $(if $(LLMC),--llmc $(LLMC)) \
    $(if $(SECONDS),--seconds $(SECONDS)) $(if $(TRACE_SO),--trace $(TRACE_SO)) $(PARTS)

.PHONY: gpu-day
## gpu-day: what a card can decide, correctness first, then measurements in order of value: [SECONDS=1800] [NCCL=DIR] [PYTHON=PROGRAM with torch] [LLMC=train_gpt2cu] [PARTS='124m profile'] [RESULTS=bench/results]
gpu-day: gpu-programs $(BUILD)/bench/step_worker $(TRACE_SO)
	$(Q)DSC_PLUGIN_DIR=$(abspath $(LIB))/dsc tests/gpu/day.py --step-worker $(BUILD)/bench/step_worker --checkkern $(CHECK_BIN) \
	    --train $(BIN)/train --results $(RESULTS) $(DAY_FLAGS) -- $(GPU_BIN) || { rc=$$?; [ $$rc -eq 77 ] || exit $$rc; }

# For a GPU machine without our libraries, a compiler or a network: unpack, then gpu-pack/gpu-day.
.PHONY: gpu-pack
## gpu-pack: build/gpu-pack.tar.xz, all that gpu-day, test-gpu and bench-gpu need on another machine: [NCCL=FILE libnccl*.so or .xz]
gpu-pack: gpu-programs $(BUILD)/bench/step_worker $(TRACE_SO)
	$(Q)DSC_BIN=$(abspath $(BIN)) DSC_LIB=$(abspath $(LIB)) tests/gpu/pack.sh build/gpu-pack.tar.xz $(if $(NCCL),--nccl $(NCCL)) \
	    $(if $(TRACE_SO),--trace $(TRACE_SO)) \
	    $(BUILD)/bench/step_worker $(GPU_BIN) $(CHECK_BIN)
