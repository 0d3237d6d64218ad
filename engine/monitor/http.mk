# http.mk - HTTP plugins of the monitors: pages on the loopback address (lib/dsc/libdsc_http.so, needs libmicrohttpd's
# header) and requests to servers (lib/dsc/libdsc_web.so, needs libcurl's header).
# SPDX-License-Identifier: Apache-2.0
HTTP_PLUGIN := $(if $(wildcard /usr/include/microhttpd.h),$(LIB)/dsc/libdsc_http.so)

$(LIB)/dsc/libdsc_http.so: $(BUILD)/engine/monitor/http_plugin.o $(LIB)/.variant
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CC) -shared -Wl,-soname,libdsc_http.so $(if $(SAN),,-Wl,-z$(comma)defs) $(LDFLAGS) $< -lmicrohttpd -o $@

CURL_HEADER := $(firstword $(wildcard /usr/include/curl/curl.h /usr/include/*/curl/curl.h))
WEB_PLUGIN  := $(if $(CURL_HEADER),$(LIB)/dsc/libdsc_web.so)

$(LIB)/dsc/libdsc_web.so: $(BUILD)/engine/monitor/web_plugin.o $(LIB)/.variant
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@")
	$(Q)$(CC) -shared -Wl,-soname,libdsc_web.so $(if $(SAN),,-Wl,-z$(comma)defs) $(LDFLAGS) $< -lcurl -o $@

$(BUILD)/engine/monitor/page_html.o: engine/monitor/page.html

all: $(HTTP_PLUGIN) $(WEB_PLUGIN)
