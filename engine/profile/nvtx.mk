# nvtx.mk - ranges for NVIDIA's tools, lib/dsc/libdsc_nvtx.so: of headers that come with the CUDA toolkit, and need nothing of it.
# SPDX-License-Identifier: Apache-2.0
NVTX_HEADER := $(firstword $(wildcard /usr/include/nvtx3/nvToolsExt.h /usr/local/cuda/include/nvtx3/nvToolsExt.h \
                 $(CUDA_WHEELS)/nvidia/cu13/include/nvtx3/nvToolsExt.h))
NVTX_PLUGIN := $(if $(NVTX_HEADER),$(LIB)/dsc/libdsc_nvtx.so)

$(BUILD)/engine/profile/nvtx_plugin.o: ISA := -isystem $(patsubst %/nvtx3/nvToolsExt.h,%,$(NVTX_HEADER))

$(LIB)/dsc/libdsc_nvtx.so: $(BUILD)/engine/profile/nvtx_plugin.o $(LIB)/.variant
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CC) -shared -Wl,-soname,libdsc_nvtx.so $(LDFLAGS) $< -ldl -o $@

all: $(NVTX_PLUGIN)
