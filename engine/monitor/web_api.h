/* web_api.h - functions of lib/dsc/libdsc_web.so: requests to a server, by libcurl.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MONITOR_WEB_API_H
#define DSC_ENGINE_MONITOR_WEB_API_H

#include <stddef.h>
#include <stdint.h>

#define DSC_WEB_API_VERSION 1u
#define DSC_WEB_SYMBOL "dsc_web_api_get"
#define DSC_WEB_TEXT 256

typedef struct dsc_web dsc_web;

typedef struct dsc_web_api {
    uint32_t version, table_bytes;
    char build[32];
    /* `token` (may be NULL) goes into each request as "Authorization: Bearer". NULL: no memory. */
    dsc_web *(*open)(const char *token);
    /* GET, or with a body POST of JSON; http and https only, redirects are not followed, at most `limit_s` seconds.
     * Returns the status of HTTP, with the answer in answer[capacity], terminated and cut to fit; or 0 and the reason
     * in text[DSC_WEB_TEXT]. By one thread at a time. */
    int (*ask)(dsc_web *web, const char *url, const char *body, int limit_s, char *answer, size_t capacity, char *text);
    void (*close)(dsc_web *web); /* NULL is fine */
} dsc_web_api;
/* DSC_WEB_SYMBOL: the one dsc_web_api. */
const void *dsc_web_api_get(void);

#endif
