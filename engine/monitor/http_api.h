/* http_api.h - functions of lib/dsc/libdsc_http.so: pages on the loopback address, by libmicrohttpd.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MONITOR_HTTP_API_H
#define DSC_ENGINE_MONITOR_HTTP_API_H

#include <stddef.h>
#include <stdint.h>

#define DSC_HTTP_API_VERSION 2u
#define DSC_HTTP_SYMBOL "dsc_http_api_get"
#define DSC_HTTP_TEXT 256
#define DSC_HTTP_PAGE_BYTES 131072 /* largest page */

typedef struct dsc_http dsc_http;

/* Writes the page of `path` into out[DSC_HTTP_PAGE_BYTES] and its media type into *type; returns its bytes, 0: there is
 * no such page. `host` is what the client calls this host, "" when it does not say. Called on the server's thread. */
typedef size_t (*dsc_http_page)(void *user, const char *path, const char *host, char *out, const char **type);

typedef struct dsc_http_api {
    uint32_t version, table_bytes;
    char build[32];
    /* GET and HEAD on 127.0.0.1:port, by one thread. 0, or 1 and the reason in text[DSC_HTTP_TEXT]. */
    int (*open)(int port, dsc_http_page page, void *user, dsc_http **out, char *text);
    void (*close)(dsc_http *http); /* no page is asked for any more when it returns; NULL is fine */
} dsc_http_api;
/* DSC_HTTP_SYMBOL: the one dsc_http_api. */
const void *dsc_http_api_get(void);

#endif
