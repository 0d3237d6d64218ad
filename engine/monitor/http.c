/* http.c - a run at http://127.0.0.1:PORT: / for people, /run.json what that page shows, /metrics for Prometheus.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/monitor/http_api.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/plugin.h"
#include "engine/monitor/page.h"
#include "engine/monitor/prometheus.h"

typedef struct http_monitor {
    dsc_monitor monitor;
    const dsc_http_api *api;
    dsc_http *http;
    pthread_mutex_t lock; /* the server's thread reads what the engine's writes */
    dsc_prometheus last;
    dsc_page page;
} http_monitor;

/* A request whose Host is not this machine's name may come from a foreign site with a name that points here (DNS
 * rebinding). Numbers are public to every scraper; the log is not. */
static bool is_local(const char *host)
{
    static const char *const names[] = { "127.0.0.1", "localhost", "[::1]" };
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        const size_t length = strlen(names[i]);
        if (strncmp(host, names[i], length) == 0 && (host[length] == ':' || host[length] == 0))
            return true;
    }
    return false;
}

static size_t answer(void *user, const char *path, const char *host, char *out, const char **type)
{
    http_monitor *m = user;
    size_t bytes = 0;
    pthread_mutex_lock(&m->lock);
    if (strcmp(path, "/metrics") == 0) {
        *type = "text/plain; version=0.0.4; charset=utf-8";
        bytes = dsc_prometheus_text(&m->last, out, DSC_HTTP_PAGE_BYTES);
    } else if (strcmp(path, "/run.json") == 0 && is_local(host)) {
        *type = "application/json";
        bytes = dsc_page_json(&m->page, out, DSC_HTTP_PAGE_BYTES);
    } else if (strcmp(path, "/") == 0 && is_local(host)) {
        *type = "text/html; charset=utf-8";
        bytes = (size_t)snprintf(out, DSC_HTTP_PAGE_BYTES, "%s", dsc_page_html);
    }
    pthread_mutex_unlock(&m->lock);
    return bytes;
}

static dsc_status write_http(dsc_monitor *monitor, int64_t samples, const dsc_scalar *scalars, int count,
                             dsc_error *err)
{
    http_monitor *m = (http_monitor *)monitor;
    pthread_mutex_lock(&m->lock);
    dsc_prometheus_set(&m->last, samples, scalars, count);
    dsc_page_scalars(&m->page, samples, scalars, count);
    pthread_mutex_unlock(&m->lock);
    return DSC_OK;
}

static void describe_http(dsc_monitor *monitor, const dsc_monitor_about *about)
{
    http_monitor *m = (http_monitor *)monitor;
    pthread_mutex_lock(&m->lock);
    dsc_page_describe(&m->page, about);
    pthread_mutex_unlock(&m->lock);
}

static void ranks_http(dsc_monitor *monitor, const dsc_monitor_rank *ranks, int32_t count)
{
    http_monitor *m = (http_monitor *)monitor;
    pthread_mutex_lock(&m->lock);
    dsc_page_ranks(&m->page, ranks, count);
    pthread_mutex_unlock(&m->lock);
}

static void say_http(dsc_monitor *monitor, dsc_log_level level, const char *text)
{
    http_monitor *m = (http_monitor *)monitor;
    pthread_mutex_lock(&m->lock);
    dsc_page_log(&m->page, level, text);
    pthread_mutex_unlock(&m->lock);
}

static void close_http(dsc_monitor *monitor)
{
    http_monitor *m = (http_monitor *)monitor;
    if (m->api != NULL)
        m->api->close(m->http);
    pthread_mutex_destroy(&m->lock);
    dsc_alloc_free(monitor->alloc, monitor);
}

dsc_status dsc_monitor_http(dsc_alloc *alloc, int64_t port, dsc_monitor **out, dsc_error *err)
{
    static const dsc_monitor_ops ops = { .name = "dsc.prometheus_port",
                                         .write = write_http,
                                         .describe = describe_http,
                                         .ranks = ranks_http,
                                         .say = say_http,
                                         .close = close_http };
    static const dsc_plugin plugin = { .key = "dsc.prometheus_port",
                                       .file = "libdsc_http.so",
                                       .package = "libmicrohttpd-dev (make deps-http)",
                                       .instead = "take the key out",
                                       .symbol = DSC_HTTP_SYMBOL,
                                       .version = DSC_HTTP_API_VERSION,
                                       .table_bytes = sizeof(dsc_http_api) };
    const void *api = NULL;
    char text[DSC_HTTP_TEXT];
    http_monitor *m = NULL;
    DSC_TRY(dsc_plugin_table(&plugin, &api, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *m, &m, err));
    m->monitor.ops = &ops;
    m->monitor.alloc = alloc;
    pthread_mutex_init(&m->lock, NULL);
    *out = &m->monitor;
    m->api = api;
    if (m->api->open((int)port, answer, m, &m->http, text) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.prometheus_port", "nothing can be served at %s", text);
    return DSC_OK;
}
