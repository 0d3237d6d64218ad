/* http_plugin.c - lib/dsc/libdsc_http.so: libmicrohttpd behind http_api.h. SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/monitor/http_api.h"

enum { CONNECTIONS_MAX = 16, IDLE_S = 5 };

struct dsc_http {
    struct MHD_Daemon *daemon;
    dsc_http_page page;
    void *user;
};

static enum MHD_Result answer(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_bytes, void **seen)
{
    static const char none[] = "no such page; / and /metrics are there\n";
    static int once;
    const struct dsc_http *http = user;
    const char *type = "text/plain; charset=utf-8";
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return MHD_NO; /* closes the connection */
    if (*seen == NULL) { /* the headers are not here yet */
        *seen = &once;
        return MHD_YES;
    }
    char *text = malloc(DSC_HTTP_PAGE_BYTES);
    if (text == NULL)
        return MHD_NO;
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    const size_t bytes = http->page(http->user, url, host != NULL ? host : "", text, &type);
    if (bytes == 0)
        memcpy(text, none, sizeof none - 1);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes > 0 ? bytes : sizeof none - 1, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    const unsigned code = bytes > 0 ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND;
    const enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static void close_server(dsc_http *http)
{
    if (http == NULL)
        return;
    if (http->daemon != NULL)
        MHD_stop_daemon(http->daemon);
    free(http);
}

static void drop_log(void *user, const char *format, va_list args) { }

static int open_server(int port, dsc_http_page page, void *user, dsc_http **out, char *text)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    dsc_http *http = calloc(1, sizeof *http);
    if (http == NULL) {
        snprintf(text, DSC_HTTP_TEXT, "no memory");
        return 1;
    }
    http->page = page;
    http->user = user;
    errno = 0;
    http->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG, (uint16_t)port, NULL, NULL,
                                    answer, http, MHD_OPTION_EXTERNAL_LOGGER, drop_log, NULL, MHD_OPTION_SOCK_ADDR,
                                    (struct sockaddr *)&at, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
                                    MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S, MHD_OPTION_END);
    if (http->daemon == NULL) {
        snprintf(text, DSC_HTTP_TEXT, "127.0.0.1:%d: %s", port, errno != 0 ? strerror(errno) : "libmicrohttpd refuses");
        free(http);
        return 1;
    }
    *out = http;
    return 0;
}

__attribute__((visibility("default"))) const void *dsc_http_api_get(void)
{
    static const dsc_http_api api = { DSC_HTTP_API_VERSION, (uint32_t)sizeof api, DSC_VERSION_TEXT, open_server,
                                      close_server };
    return &api;
}
