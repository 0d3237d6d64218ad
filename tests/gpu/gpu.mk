# gpu.mk - the tests of simulated GPUs on real ones. SPDX-License-Identifier: Apache-2.0
#
# tests/gpu/run.sh says what it runs and skips; it ends with 77 where there is no GPU.

GPU_BIN := $(patsubst tests/sim/%.c,$(TEST_BIN)/gpu/%,$(sort $(wildcard tests/sim/test_*.c)))
$(GPU_BIN): $(TEST_BIN)/gpu/%: $(BUILD)/tests/sim/%.o $(BUILD)/tests/gpu/real.o $(HELP_OBJ) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ -lcmocka $(LDLIBS) -o $@

.PHONY: gpu-programs
gpu-programs: all cuda-plugin $(GPU_BIN) $(CHECK_BIN)

.PHONY: test-gpu
## test-gpu: kernels and training on a real GPU, compute-sanitizer where it is: [NCCL=DIR of libnccl.so.2 2.30+]
test-gpu: gpu-programs
	$(Q)DSC_BIN=$(abspath $(BIN)) DSC_LIB=$(abspath $(LIB)) tests/gpu/run.sh $(if $(NCCL),--nccl $(NCCL)) $(GPU_BIN) $(CHECK_BIN) || \
	    { rc=$$?; [ $$rc -eq 77 ] || exit $$rc; }
