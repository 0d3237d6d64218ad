# sim.mk - the simulated GPUs and what runs on them. SPDX-License-Identifier: Apache-2.0
#
# tests/sim/*.cc           the simulator (libcusim.a); test_*.cc one program each (suite: sim)
# tests/sim/test_*.c       the engine itself on simulated GPUs, ranks as threads (suite: sim)
# tests/sim/planted/*.sed  faults planted into copies of the backend's sources: checkkern with one each
# (test_planted.sh) The backend's own .cu sources compile for it as C++: tests/sim/include stands in for the toolkit's
# headers.

SIM_CXX     := $(if $(findstring clang,$(COMPILER)),clang++,g++)
SIM_WARN    := -Wall -Wextra -Wshadow -Wpointer-arith -Wcast-qual -Wundef -Wno-unused-parameter -Wno-unused-function \
               -Wno-unknown-pragmas -Wno-psabi $(if $(filter 1,$(WERROR)),-Werror)
SIM_OPT     := -O2
# std::fma is an instruction where the CPU has one, and a slow call otherwise; the bits are the same.
SIM_ARCH    := $(if $(shell grep -m 1 -w fma /proc/cpuinfo 2>/dev/null),-mfma)
SIM_FLAGS   := -std=gnu++17 $(SIM_OPT) $(SIM_ARCH) $(SYMBOLS) -fPIC -ffp-contract=off -Itests/sim/include $(SANFLAGS) $(SIM_WARN)
# Kernels' accesses are looked at (tests/sim/track.h): the compiler's calls for ThreadSanitizer come to the simulator,
# which has no use for those at the beginning and end of functions.
SIM_TRACK   := $(if $(filter address,$(SANITIZERS)),,-fsanitize=thread $(if $(findstring clang,$(COMPILER)),\
               -mllvm -tsan-instrument-func-entry-exit=0,--param=tsan-instrument-func-entry-exit=0))
SIM_SRC     := $(filter-out tests/sim/test_%,$(sort $(wildcard tests/sim/*.cc)))
SIM_TESTS   := $(sort $(wildcard tests/sim/test_*.cc))
SIM_CC_BIN  := $(SIM_TESTS:tests/%.cc=$(TEST_BIN)/%)
SIM_C_BIN   := $(patsubst tests/%.c,$(TEST_BIN)/%,$(sort $(wildcard tests/sim/test_*.c)))
SIM_BIN     := $(SIM_CC_BIN) $(SIM_C_BIN)
SIM_OBJ     := $(SIM_SRC:%.cc=$(BUILD)/%.o)
# checkkern with simulated GPUs in it checks the CUDA kernels.
CHECK_SIM_BIN := $(if $(CHECK_SRC),$(TEST_BIN)/sim/checkkern)
# Fibers move stacks under ThreadSanitizer's feet, and their switch is written for x86-64: there one script says that
# the suite is left out.
SIM_LEFT_OUT := $(filter thread,$(SANITIZERS))$(filter-out x86_64,$(shell uname -m))
ifneq ($(SIM_LEFT_OUT),)
SIM_BIN     := tests/sim/left_out.sh
CHECK_SIM_BIN :=
endif

$(BUILD)/sim-flags: FORCE
	@mkdir -p $(@D); echo '$(SIM_CXX) $(CPPFLAGS) $(SIM_FLAGS) -O3 $(SIM_TRACK)' | cmp -s - $@ || \
	    echo '$(SIM_CXX) $(CPPFLAGS) $(SIM_FLAGS) -O3 $(SIM_TRACK)' > $@

$(BUILD)/tests/sim/%.o: tests/sim/%.cc $(BUILD)/sim-flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CXX   $<")
	$(Q)$(SIM_CXX) $(CPPFLAGS) $(SIM_FLAGS) $(if $(findstring /test_,$<),$(SIM_TRACK),-O3) -MMD -MP -c $< -o $@

$(LIB)/libcusim.a: $(SIM_OBJ) $(LIB)/.variant
	@mkdir -p $(@D); rm -f $@
	$(Q)ar rcs $@ $(SIM_OBJ)

$(SIM_CC_BIN): $(TEST_BIN)/%: $(BUILD)/tests/%.o $(LIB)/libcusim.a
	@mkdir -p $(@D)
	$(Q)$(SIM_CXX) $(SANFLAGS) $^ -lpthread -ldl -o $@

# The backend for simulated GPUs. A program exports it whole, with the simulator: the engine looks for the cuda device,
# NCCL and cuBLASLt in the program itself before it opens libraries.
$(LIB)/libdsc_sim.a: $(CUDA_SIM_OBJ) $(LIB)/.variant
	@mkdir -p $(@D); rm -f $@
	$(Q)ar rcs $@ $(CUDA_SIM_OBJ)

SIM_BACKEND := $(LIB)/libdsc_sim.a $(LIB)/libcusim.a
$(SIM_C_BIN): $(TEST_BIN)/%: $(BUILD)/tests/%.o $(HELP_OBJ) $(SIM_BACKEND) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(SIM_CXX) $(LDFLAGS) -rdynamic $(filter %.o,$^) -Wl,--whole-archive $(SIM_BACKEND) -Wl,--no-whole-archive \
	    $(LIB)/libdsc.a -lcmocka $(LDLIBS) -o $@

# The launcher's verdict on a record that simulated GPUs wrote.
$(TEST_BIN)/sim/test_flight: $(BUILD)/launcher/coordinator/hang.o

# Users' programs on simulated GPUs; those in no-X/ have no X of their own and look for the machine's. X is X.cc and X_*.cc.
sim_without  = $(foreach x,$(patsubst no-%,%,$(notdir $(1))),$(BUILD)/tests/sim/$(x).o $(BUILD)/tests/sim/$(x)_%.o)
SIM_DIR      := $(TEST_BIN)/sim
SIM_PROGRAMS := $(if $(SIM_LEFT_OUT),,$(addprefix $(SIM_DIR)/,bin/train bin/dsc bin/step_worker no-cublaslt/train no-cublaslt/dsc no-nccl/train))
SIM_TEXTS    := $(if $(SIM_LEFT_OUT),,$(sort $(wildcard tests/sim/test_*.sh)))
$(filter %/train,$(SIM_PROGRAMS)): $(TRAIN_OBJ)
$(filter %/dsc,$(SIM_PROGRAMS)): $(TOOL_OBJ)
$(filter %/step_worker,$(SIM_PROGRAMS)): $(BUILD)/bench/step_worker.o
$(SIM_PROGRAMS): $(CUDA_SIM_OBJ) $(SIM_OBJ) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(SIM_CXX) $(LDFLAGS) -rdynamic $(filter-out $(call sim_without,$(@D)),$(filter %.o,$^)) \
	    $(LIB)/libdsc.a $(LDLIBS) -o $@

$(CHECK_SIM_BIN): $(CHECK_SRC:%.c=$(BUILD)/%.o) $(SIM_BACKEND) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(Q)$(SIM_CXX) $(LDFLAGS) -rdynamic $(filter %.o,$^) -Wl,--whole-archive $(SIM_BACKEND) -Wl,--no-whole-archive \
	    $(LIB)/libdsc.a $(LDLIBS) -o $@

# SOURCE-FAULT.sed changes SOURCE.cu of kernels/cuda/ or of a folder in it, whose object it replaces. One that changes nothing ends the build.
PLANTED     := $(if $(CHECK_SIM_BIN),$(basename $(notdir $(sort $(wildcard tests/sim/planted/*.sed)))))
PLANTED_BIN := $(PLANTED:%=$(SIM_DIR)/planted/%)
planted_source = $(basename $(filter %/$(firstword $(subst -, ,$(1))).cu,$(CUDA_SRC)))
define planted_rules
$(BUILD)/tests/sim/planted/$(1).cu: tests/sim/planted/$(1).sed $(call planted_source,$(1)).cu
	@mkdir -p $$(@D)
	$$(Q)sed -f $$^ >$$@; ! cmp -s $$@ $$(word 2,$$^) || { rm -f $$@; echo "$$<: it changes nothing"; exit 1; }
$(SIM_DIR)/planted/$(1): $(BUILD)/tests/sim/planted/$(1).o $(CHECK_SRC:%.c=$(BUILD)/%.o) \
    $(filter-out $(BUILD)/$(call planted_source,$(1)).sim.o,$(CUDA_SIM_OBJ)) $(SIM_OBJ) $(LIB)/libdsc.a
	@mkdir -p $$(@D)
	$$(Q)$$(SIM_CXX) $$(LDFLAGS) -rdynamic $$(filter %.o,$$^) $(LIB)/libdsc.a $$(LDLIBS) -o $$@
endef
$(foreach p,$(PLANTED),$(eval $(call planted_rules,$(p))))

$(PLANTED:%=$(BUILD)/tests/sim/planted/%.o): %.o: %.cu $(wildcard kernels/cuda/*.h kernels/cuda/*/*.h) $(BUILD)/sim-flags
	$(if $(V),,@echo "  SIM   $<")
	$(Q)$(SIM_CXX) -x c++ $(CPPFLAGS) $(SIM_FLAGS) $(SIM_TRACK) -c $< -o $@
