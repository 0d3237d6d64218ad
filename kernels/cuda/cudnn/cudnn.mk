# cudnn.mk - attention and convolutions by cuDNN: lib/dsc/libdsc_cudnn.so. SPDX-License-Identifier: Apache-2.0
#
# Part of `all` where libdsc_cuda.so is and the headers are: NVIDIA's frontend (`make deps-cudnn`) and cudnn.h (from
# there too, or beside the toolkit). Else skipped, and runs take dsc's own kernels. The plugin has the CUDA runtime
# in it and opens libcudnn at run time. g++ takes a vector of the frontend for one of 2^64 bytes (stringop-overflow).

CUDNN_FRONTEND := $(firstword $(wildcard $(CUDA_WHEELS)/include/cudnn_frontend.h /usr/include/cudnn_frontend.h /usr/local/include/cudnn_frontend.h))
CUDNN_HEADER   := $(firstword $(wildcard $(CUDA_WHEELS)/nvidia/cudnn/include/cudnn.h $(NVCC:%/bin/nvcc=%/include/cudnn.h) /usr/include/cudnn.h))
CUDNN_PLUGIN   := $(if $(BUILD_CUDA),$(if $(CUDNN_FRONTEND),$(if $(CUDNN_HEADER),$(LIB)/dsc/libdsc_cudnn.so)))
CUDNN_OBJ      := $(addprefix $(BUILD)/kernels/cuda/cudnn/,cudnn_plugin.o cudnn_attention.o cudnn_conv2d.o cudnn_calls.o)

$(CUDNN_OBJ): $(BUILD)/%.o: %.cc $(BUILD)/nvcc-flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CXX   $<")
	$(Q)$(filter ccache,$(CC)) $(NVCC) $(CPPFLAGS) -std=c++17 -O2 -DCUDNN_FRONTEND_SKIP_JSON_LIB \
	    -isystem $(dir $(CUDNN_FRONTEND)) -isystem $(dir $(CUDNN_HEADER)) \
	    -Xcompiler -fPIC,-fvisibility=hidden -Xcompiler $(CUDA_WARN),-Wno-stringop-overflow -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(LIB)/dsc/libdsc_cudnn.so: $(CUDNN_OBJ) $(LIB)/libdsc.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(NVCC) -shared -cudart static -Xlinker --exclude-libs,ALL -Xlinker -soname,libdsc_cudnn.so -Xlinker -z,defs \
	    $^ -lpthread -ldl -o $@

.PHONY: cudnn-plugin
## cudnn-plugin: lib/dsc/libdsc_cudnn.so, what ranks on GPUs load for attention and convolutions by cuDNN
cudnn-plugin: $(CUDNN_PLUGIN)
	$(if $(CUDNN_PLUGIN),,@echo "cudnn-plugin: skipped: $(if $(BUILD_CUDA),no cudnn_frontend.h or cudnn.h here (make deps-cudnn),there is no libdsc_cuda.so in this build)")

ifneq ($(CUDNN_PLUGIN),)
all: $(CUDNN_PLUGIN)
endif

.PHONY: deps-cudnn
## deps-cudnn: cuDNN and its frontend's headers from PyPI into deps/cuda, for attention and convolutions by cuDNN
deps-cudnn:
	$(Q)tools/deps_cudnn.sh $(CUDA_WHEELS)
