# net.mk - the transports between hosts that need a library: lib/dsc/libdsc_gloo.so and libdsc_mpi.so.
# SPDX-License-Identifier: Apache-2.0
#
# Part of `all` where the library's headers are; else skipped, and the transport says what is missing when it is asked
# for. Built once, by the plain gcc build. MPI_CFLAGS and MPI_LIBS: of another MPI than Debian's Open MPI.

NET_GCC     := $(if $(SAN),,$(filter gcc cc,$(COMPILER)))
GLOO_HEADER := $(wildcard /usr/include/gloo/transport/unbound_buffer.h)
MPI_FOLDER  := $(firstword $(wildcard /usr/lib/*/openmpi))
MPI_CFLAGS  ?= $(if $(MPI_FOLDER),-isystem $(MPI_FOLDER)/include)
MPI_LIBS    ?= $(if $(MPI_FOLDER),-L$(MPI_FOLDER)/lib -lmpi)
GLOO_PLUGIN := $(if $(NET_GCC),$(if $(GLOO_HEADER),$(if $(shell command -v $(CXX) 2>/dev/null),$(LIB)/dsc/libdsc_gloo.so)))
MPI_PLUGIN  := $(if $(NET_GCC),$(if $(MPI_LIBS),$(LIB)/dsc/libdsc_mpi.so))

$(BUILD)/comm/transports/gloo_plugin.o: comm/transports/gloo_plugin.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CXX   $<")
	$(Q)$(filter ccache,$(CC)) $(CXX) $(CPPFLAGS) -std=c++17 -O2 $(SYMBOLS) -fPIC -fvisibility=hidden -Wall -Wextra \
	    -Wno-unused-parameter $(if $(filter 1,$(WERROR)),-Werror) -MMD -MP -c $< -o $@

$(BUILD)/comm/transports/mpi_plugin.o $(BUILD)/comm/transports/mpi_thread_plugin.o: ISA := $(MPI_CFLAGS)

$(LIB)/dsc/libdsc_gloo.so: $(BUILD)/comm/transports/gloo_plugin.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CXX) -shared -Wl,-soname,libdsc_gloo.so -Wl,-z,defs $< -lgloo -lpthread -o $@

$(LIB)/dsc/libdsc_mpi.so: $(BUILD)/comm/transports/mpi_plugin.o $(BUILD)/comm/transports/mpi_thread_plugin.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CC) -shared -Wl,-soname,libdsc_mpi.so -Wl,-z,defs $^ $(MPI_LIBS) -lpthread -o $@

.PHONY: net-plugins
## net-plugins: what the transports "gloo" and "mpi" load, where their libraries are
net-plugins: $(GLOO_PLUGIN) $(MPI_PLUGIN)
	$(if $(GLOO_PLUGIN),,@echo "net-plugins: gloo skipped: $(if $(GLOO_HEADER),only the plain gcc build has it,no libgloo-dev here (make deps-net))")
	$(if $(MPI_PLUGIN),,@echo "net-plugins: mpi skipped: $(if $(MPI_LIBS),only the plain gcc build has it,no libopenmpi-dev here (make deps-net))")

all: $(GLOO_PLUGIN) $(MPI_PLUGIN)
