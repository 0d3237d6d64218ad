# http.mk - pages on the loopback address: lib/dsc/libdsc_http.so, where libmicrohttpd's header is, and what it serves.
# SPDX-License-Identifier: Apache-2.0
HTTP_PLUGIN := $(if $(wildcard /usr/include/microhttpd.h),$(LIB)/dsc/libdsc_http.so)

$(LIB)/dsc/libdsc_http.so: $(BUILD)/engine/monitor/http_plugin.o $(LIB)/.variant
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CC) -shared -Wl,-soname,libdsc_http.so $(if $(SAN),,-Wl,-z$(comma)defs) $(LDFLAGS) $< -lmicrohttpd -o $@

$(BUILD)/engine/monitor/page_html.o: engine/monitor/page.html

all: $(HTTP_PLUGIN)
