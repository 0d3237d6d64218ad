# parquet.mk - Parquet files by Apache Arrow: lib/dsc/libdsc_parquet.so. SPDX-License-Identifier: Apache-2.0
#
# Part of `all` where Arrow's headers and libraries are: those of the package pyarrow (`make deps-parquet`, or
# PARQUET_WHEELS=FOLDER with pyarrow/ in it). Else skipped, and Parquet files are refused with the command that converts them.

PARQUET_WHEELS := $(CURDIR)/deps/parquet
PYARROW        := $(PARQUET_WHEELS)/pyarrow
ARROW_LIBS     := $(wildcard $(PYARROW)/libparquet.so.* $(PYARROW)/libarrow.so.*)
PARQUET_PLUGIN := $(if $(wildcard $(PYARROW)/include/parquet/arrow/reader.h),$(if $(ARROW_LIBS),$(LIB)/dsc/libdsc_parquet.so))

$(BUILD)/engine/text/parquet_plugin.o: engine/text/parquet_plugin.cc
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CXX   $<")
	$(Q)$(CXX) $(CPPFLAGS) -std=c++20 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -isystem $(PYARROW)/include \
	    -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# The folder of the libraries is in the plugin; LD_LIBRARY_PATH names another one.
$(LIB)/dsc/libdsc_parquet.so: $(BUILD)/engine/text/parquet_plugin.o $(LIB)/.variant
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CXX) -shared -Wl,-soname,libdsc_parquet.so -Wl,-rpath,$(PYARROW) $< $(ARROW_LIBS) -o $@

ifneq ($(PARQUET_PLUGIN),)
all: $(PARQUET_PLUGIN)
endif

.PHONY: deps-parquet
## deps-parquet: Apache Arrow's C++ library and headers (package pyarrow of PyPI) into deps/parquet, to read Parquet files
deps-parquet:
	$(Q)tools/deps_parquet.sh $(PARQUET_WHEELS)
