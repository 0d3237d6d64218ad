# cuda.mk - the GPU backend: $(CUDA_OBJ) by nvcc and the plugin of them, $(CUDA_SIM_OBJ) of the same sources for the
# simulator. SPDX-License-Identifier: Apache-2.0
#
# CUDA=auto (default): the plugin is part of `all` when nvcc is found: in PATH, in /usr/local/cuda, or put into deps/ by
# `make deps-cuda`. CUDA=1: there must be one. CUDA=0: never. Nothing else of the build needs a toolkit.

CUDA_WHEELS := $(CURDIR)/deps/cuda
NVCC       ?= $(firstword $(shell command -v nvcc 2>/dev/null) \
              $(wildcard /usr/local/cuda/bin/nvcc $(CUDA_WHEELS)/nvidia/cu13/bin/nvcc))
$(if $(filter 1,$(CUDA)),$(if $(NVCC),,$(error CUDA=1, but there is no nvcc: make deps-cuda, or NVCC=PATH)))
CUDA_SRC   := $(sort $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu))
CUDA_OBJ   := $(CUDA_SRC:%.cu=$(BUILD)/%.cu.o)
CUDA_SIM_OBJ := $(CUDA_SRC:%.cu=$(BUILD)/%.sim.o)
# Machine code, and PTX that the driver compiles for other cards at their first start. short, the default, is for A100
# and H100: code of sm_80 also runs on RTX 30 and 40. all, for releases, takes three times as long and adds RTX 30
# (86), RTX 40 and L40S (89), B200 (100) and RTX 50 (120).
CUDA_CODE  ?= short
CUDA_SM    := $(or $(if $(filter short,$(CUDA_CODE)),80 90),$(if $(filter all,$(CUDA_CODE)),80 86 89 90 100 120),\
              $(error CUDA_CODE is short or all, and not $(CUDA_CODE)))
CUDA_ARCH  ?= $(foreach sm,$(CUDA_SM),-gencode arch=compute_$(sm),code=sm_$(sm)) -gencode arch=compute_90,code=compute_90
# X_sm90.cu is instructions that only this architecture has, and nobody runs it elsewhere.
CUDA_ARCH_SM90 := -gencode arch=compute_90a,code=sm_90a
CUDA_WARN  := -Wall,-Wextra,-Wno-unused-parameter,-Wno-unused-function$(if $(filter 1,$(WERROR)),$(comma)-Werror)

NVCC_PLAIN := -std=c++17 -O3 -lineinfo -Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off,-g \
              -Xcompiler $(CUDA_WARN) $(if $(filter 1,$(WERROR)),-Werror all-warnings)
$(BUILD)/kernels/cuda/%_sm90.cu.o: ARCH := $(CUDA_ARCH_SM90)
# Bits that are a contract (kernels/exact.h, update.h, dora.h, dropout.h, quant.h, fp8.h, nf4.h, signs.h, exact_gemm.h, binned_sum.h): every operation rounds once, as IEEE says.
EXACT_CUDA := $(addprefix $(BUILD)/kernels/cuda/,exact update dora dropout quant fp8 nf4 signs exact_gemm binned_sum)
$(EXACT_CUDA:=.cu.o) $(EXACT_CUDA:=.ptx): NUMBERS := -fmad=false -ftz=false -prec-div=true -prec-sqrt=true

NVCC_ALL   := $(NVCC) $(CPPFLAGS) $(NVCC_PLAIN) $(CUDA_ARCH) $(CUDA_ARCH_SM90)
.PHONY: FORCE
$(BUILD)/nvcc-flags: FORCE
	@mkdir -p $(@D); echo '$(NVCC_ALL)' | cmp -s - $@ || echo '$(NVCC_ALL)' > $@

$(BUILD)/%.cu.o: %.cu $(BUILD)/nvcc-flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  NVCC  $<")
	$(Q)$(filter ccache,$(CC)) $(NVCC) $(CPPFLAGS) $(NVCC_PLAIN) $(or $(ARCH),$(CUDA_ARCH)) $(NUMBERS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ \
	    2>$(@:.o=.words); rc=$$?; cat $(@:.o=.words) >&2; [ $$rc -eq 0 ] || exit $$rc
	$(Q)if grep -q 'wgmma.* are serialized' $(@:.o=.words); then rm -f $@; \
	    echo "$<: products of warpgroups run one by one: registers are used before their wait, or there are too few" >&2; exit 1; fi

# PTX that tests/cli/test_cuda_code.sh reads.
$(BUILD)/%.ptx: %.cu $(BUILD)/nvcc-flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  PTX   $<")
	$(Q)$(NVCC) $(CPPFLAGS) $(NVCC_PLAIN) $(NUMBERS) -gencode arch=compute_80,code=compute_80 -MMD -MP -MF $@.d -ptx $< -o $@

# SIM_CXX, SIM_FLAGS and SIM_TRACK are tests/sim/sim.mk's.
$(BUILD)/%.sim.o: %.cu $(BUILD)/sim-flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  SIM   $<")
	$(Q)$(SIM_CXX) -x c++ $(CPPFLAGS) $(SIM_FLAGS) $(SIM_TRACK) -MMD -MP -c $< -o $@

.PHONY: cuda
## cuda: compile every CUDA source without warnings: [CUDA_CODE=short|all]
cuda: $(if $(NVCC),$(CUDA_OBJ))
	$(Q)$(if $(NVCC),echo "cuda: $(words $(CUDA_OBJ)) objects",echo "cuda: skipped: no nvcc here")

# Built once, by the plain gcc build. Only its one entry is visible: its copy of base/ must not meet the program's.
BUILD_CUDA  := $(if $(SAN)$(filter 0,$(CUDA)),,$(if $(filter gcc cc,$(COMPILER)),$(if $(NVCC),1)))
CUDA_PLUGIN := $(LIB)/dsc/libdsc_cuda.so
EXACT_PTX   := $(if $(BUILD_CUDA),$(EXACT_CUDA:=.ptx))
$(CUDA_PLUGIN): $(CUDA_OBJ) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(NVCC) -shared -cudart static -Xlinker --exclude-libs,ALL -Xlinker -soname,libdsc_cuda.so -Xlinker -z,defs \
	    $(CUDA_OBJ) $(LIB)/libdsc.a -lpthread -ldl -lm -o $@

.PHONY: cuda-plugin
## cuda-plugin: lib/dsc/libdsc_cuda.so, what ranks on GPUs load: [CUDA_CODE=short|all], all for releases
cuda-plugin: $(if $(BUILD_CUDA),$(CUDA_PLUGIN))
	$(if $(BUILD_CUDA),,@echo "cuda-plugin: skipped: $(if $(SAN),sanitized builds have none,$(if $(filter 0,$(CUDA)),CUDA=0,$(if $(NVCC),only gcc's build has it,no nvcc here (make deps-cuda))))")

ifneq ($(BUILD_CUDA),)
all: $(CUDA_PLUGIN)
endif

.PHONY: deps-cuda
## deps-cuda: a CUDA compiler, cuBLASLt and NCCL from PyPI into deps/cuda, for machines without a toolkit
deps-cuda:
	$(Q)tools/deps_cuda.sh $(CUDA_WHEELS)
