# net.mk - the transports between hosts that need a library: lib/dsc/libdsc_gloo.so. SPDX-License-Identifier: Apache-2.0
#
# Part of `all` where the library's headers are; else skipped, and the transport says what is missing when it is asked
# for. Built once, by the plain gcc build.

GLOO_HEADER := $(wildcard /usr/include/gloo/transport/tcp/pair.h)
BUILD_GLOO  := $(if $(SAN),,$(if $(filter gcc cc,$(COMPILER)),$(if $(GLOO_HEADER),$(shell command -v $(CXX) 2>/dev/null))))
GLOO_PLUGIN := $(LIB)/dsc/libdsc_gloo.so

$(BUILD)/zero/comm/gloo_plugin.o: zero/comm/gloo_plugin.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CXX   $<")
	$(Q)$(filter ccache,$(CC)) $(CXX) $(CPPFLAGS) -std=c++17 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra \
	    -Wno-unused-parameter $(if $(filter 1,$(WERROR)),-Werror) -MMD -MP -c $< -o $@

$(GLOO_PLUGIN): $(BUILD)/zero/comm/gloo_plugin.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CXX) -shared -Wl,-soname,libdsc_gloo.so -Wl,-z,defs $< -lgloo -lpthread -o $@

.PHONY: net-plugins
## net-plugins: lib/dsc/libdsc_gloo.so, what the transport "gloo" loads
net-plugins: $(if $(BUILD_GLOO),$(GLOO_PLUGIN))
	$(if $(BUILD_GLOO),,@echo "net-plugins: gloo skipped: $(if $(GLOO_HEADER),only the plain gcc build has it,no libgloo-dev here (make deps-net))")

ifneq ($(BUILD_GLOO),)
all: $(GLOO_PLUGIN)
endif
