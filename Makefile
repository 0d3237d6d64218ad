# Makefile - builds bin/, lib/ and runs everything else. `make help` is the manual.
#
# Options: V=1 verbose, SAN=address|undefined|address,undefined|thread, CUDA=auto|0|1, WERROR=0, CC=clang CXX=clang++,
# SYMBOLS= for programs that no debugger sees: they compile and link faster
# SPDX-License-Identifier: Apache-2.0

VERSION   := 0.1.0
CUDA      ?= auto
WERROR    ?= 1
PREFIX    ?= /usr/local
SYMBOLS   ?= -g
SAN       ?=
comma     := ,
# SAN as words, one per sanitizer.
SANITIZERS := $(subst $(comma), ,$(SAN))
# gcc by its own name where it is what cc means: `make` and `make CC=gcc` are one build.
ifeq ($(origin CC),default)
CC := $(if $(and $(shell command -v cc 2>/dev/null),$(if $(findstring Free Software,$(shell cc --version 2>/dev/null)),,other)),cc,gcc)
endif
COMPILER  := $(notdir $(lastword $(CC)))
BUILD     := build/$(COMPILER)-$(if $(SAN),$(subst $(comma),-,$(SAN)),release)
Q         := $(if $(V),,@)

# Variants never share objects or programs; only the plain build fills bin/ and lib/.
BIN       := $(if $(SAN),$(BUILD)/bin,bin)
LIB       := $(if $(SAN),$(BUILD)/lib,lib)

WARN      := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual \
             -Wwrite-strings -Wundef -Wvla -Wno-unused-parameter $(if $(filter 1,$(WERROR)),-Werror)
SANFLAGS  := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer $(if $(filter undefined,$(SANITIZERS)),-fno-sanitize-recover=all))
OPT       := $(if $(SAN),-O1,-O3)
CPPFLAGS  += -I. -Iinclude -D_GNU_SOURCE -DDSC_VERSION_TEXT='"$(VERSION)"'
# -ffp-contract=off and no fast-math: the numbers are a contract (docs/ARCHITECTURE.md).
CFLAGS    := -std=c17 $(OPT) $(SYMBOLS) -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fopenmp $(SANFLAGS) $(WARN) $(EXTRA_CFLAGS)
LDFLAGS   += $(SANFLAGS) -fopenmp
LDLIBS    += -ldnnl -lcjson -lyaml -lxxhash -lutf8proc -luring -lpthread -ldl -lm

LIB_DIRS  := base base/formats base/hosts kernels kernels/cpu kernels/virtual offload comm comm/front comm/rendezvous comm/transports zero zero/core zero/offload zero/optimizer models models/conv models/program engine engine/checkpoint engine/config engine/data engine/data/images engine/data/sft engine/generate engine/monitor engine/profile engine/schedule engine/stages engine/text engine/text/chat
LIB_SRC   := $(sort $(filter-out %_plugin.c,$(wildcard $(addsuffix /*.c,$(LIB_DIRS)))))
LIB_OBJ   := $(LIB_SRC:%.c=$(BUILD)/%.o)
prog_obj   = $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard $(1)/*.c)))
TRAIN_OBJ := $(call prog_obj,tools/train)
TOOL_OBJ  := $(call prog_obj,tools/dsc)
LAUNCH_OBJ := $(foreach d,launcher $(addprefix launcher/,plan process protocol output node coordinator runners),$(call prog_obj,$(d)))
PROGRAMS  := $(if $(TRAIN_OBJ),$(BIN)/train) $(if $(TOOL_OBJ),$(BIN)/dsc) $(if $(LAUNCH_OBJ),$(BIN)/dsc-launch)

.PHONY: all
## all: the programs in bin/ and the library in lib/ (default)
all: $(PROGRAMS) $(LIB)/libdsc.a $(LIB)/libdsc.so $(if $(filter bin,$(BIN)),,$(BUILD)/configs)

# Programs look for presets beside their own folder.
$(BUILD)/configs:
	@mkdir -p $(@D); ln -sfn $(abspath configs) $@

# Objects depend on the flags they were built with: a stale object is a wrong benchmark.
.PHONY: FORCE
$(BUILD)/flags: FORCE
	@mkdir -p $(@D); echo '$(CC) $(CPPFLAGS) $(CFLAGS)' | cmp -s - $@ || echo '$(CC) $(CPPFLAGS) $(CFLAGS)' > $@

# Every variant of a kernel is in every binary; the CPU's features choose at run time.
$(BUILD)/%_avx2.o: ISA := -mavx2 -mfma -mf16c
$(BUILD)/%_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
$(BUILD)/%_avx512bf16.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma -mf16c

# A test's own code runs once: -O3 takes longer than it saves. References that compute much are in tests/support and
# tests/checkkern.
$(addprefix $(BUILD)/tests/,unit/%.o dist/%.o sim/%.o): TEST_OPT := -O1

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC    $<")
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(ISA) $(TEST_OPT) -MMD -MP -c $< -o $@

# lib/ is shared by the compilers: when another one built it last, its objects may be newer than ours and still wrong.
$(LIB)/.variant: FORCE
	@mkdir -p $(@D); echo '$(BUILD)' | cmp -s - $@ || echo '$(BUILD)' > $@

$(LIB)/libdsc.a: $(LIB_OBJ) $(LIB)/.variant
	@mkdir -p $(@D); rm -f $@
	$(if $(V),,@echo "  AR    $@")
	$(Q)ar rcs $@ $(LIB_OBJ)

$(LIB)/libdsc.so: $(LIB_OBJ) $(LIB)/.variant
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CC) -shared -Wl,-soname,libdsc.so.0 $(LDFLAGS) $(LIB_OBJ) $(LDLIBS) -o $@
	@ln -sf libdsc.so $(LIB)/libdsc.so.0

$(BIN)/train: $(TRAIN_OBJ) $(LIB)/libdsc.a
$(BIN)/dsc: $(TOOL_OBJ) $(LIB)/libdsc.a
$(BIN)/dsc-launch: $(LAUNCH_OBJ) $(LIB)/libdsc.a
$(PROGRAMS):
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CC) $(LDFLAGS) $(filter %.o %.a,$^) $(LDLIBS) -o $@

.PHONY: clean
## clean: remove everything that was built
clean:
	rm -rf build bin lib

.PHONY: help
## help: this list
help:
	@awk -F': ' '/^## /{printf "  %-14s %s\n", substr($$1,4), $$2}' $(MAKEFILE_LIST)

# Everything about tests, benches and lint is in its own folder's make file.
include kernels/cuda/cuda.mk
include kernels/cuda/cudnn/cudnn.mk
include comm/net.mk
include engine/monitor/http.mk
include engine/profile/nvtx.mk
include engine/text/parquet.mk
-include tests/tests.mk
-include bench/bench.mk
-include tools/install.mk
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
