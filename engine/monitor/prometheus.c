/* prometheus.c - the last numbers at http://127.0.0.1:PORT/metrics, in Prometheus' text format 0.0.4.
 *
 * "Train/Samples/lr" is the gauge dsc_lr, "Validation/Samples/loss" is dsc_validation_loss.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/plugin.h"
#include "engine/monitor/http_api.h"
#include "engine/monitor/monitor.h"

typedef struct prometheus {
    dsc_monitor monitor;
    const dsc_http_api *api;
    dsc_http *http;
    pthread_mutex_t lock; /* the server's thread reads */
    int64_t samples;
    dsc_scalar last[2 * DSC_MONITOR_SCALARS_MAX];
    int count;
} prometheus;

static size_t put_metric(char *out, size_t room, const dsc_scalar *scalar)
{
    const char *name = strrchr(scalar->tag, '/') + 1, *part = strncmp(scalar->tag, "Validation/", 11) == 0
                                                                   ? "validation_" : "";
    char value[40];
    if (isfinite(scalar->value))
        snprintf(value, sizeof value, "%.17g", scalar->value);
    else
        snprintf(value, sizeof value, "%s", isnan(scalar->value) ? "NaN" : scalar->value > 0 ? "+Inf" : "-Inf");
    const int bytes = snprintf(out, room, "# TYPE dsc_%s%s gauge\ndsc_%s%s %s\n", part, name, part, name, value);
    return bytes > 0 && (size_t)bytes < room ? (size_t)bytes : 0;
}

static size_t page(void *user, const char *path, char *out, const char **type)
{
    prometheus *p = user;
    if (strcmp(path, "/metrics") != 0)
        return 0;
    *type = "text/plain; version=0.0.4; charset=utf-8";
    pthread_mutex_lock(&p->lock);
    size_t used = (size_t)snprintf(out, DSC_HTTP_PAGE_BYTES,
                                   "# HELP dsc_info The program.\n# TYPE dsc_info gauge\ndsc_info{version=\"%s\"} 1\n"
                                   "# HELP dsc_samples_total Samples trained on.\n# TYPE dsc_samples_total counter\n"
                                   "dsc_samples_total %lld\n", DSC_VERSION_TEXT, (long long)p->samples);
    for (int i = 0; i < p->count; i++)
        used += put_metric(out + used, DSC_HTTP_PAGE_BYTES - used, &p->last[i]);
    pthread_mutex_unlock(&p->lock);
    return used;
}

static dsc_status write_prometheus(dsc_monitor *monitor, int64_t samples, const dsc_scalar *scalars, int count,
                                   dsc_error *err)
{
    prometheus *p = (prometheus *)monitor;
    pthread_mutex_lock(&p->lock);
    p->samples = samples;
    for (int i = 0; i < count; i++) {
        int at = 0;
        while (at < p->count && strcmp(p->last[at].tag, scalars[i].tag) != 0)
            at++;
        if (at < (int)DSC_COUNT(p->last))
            p->last[at] = scalars[i];
        p->count = at == p->count && at < (int)DSC_COUNT(p->last) ? at + 1 : p->count;
    }
    pthread_mutex_unlock(&p->lock);
    return DSC_OK;
}

static void close_prometheus(dsc_monitor *monitor)
{
    prometheus *p = (prometheus *)monitor;
    if (p->api != NULL)
        p->api->close(p->http);
    pthread_mutex_destroy(&p->lock);
    dsc_alloc_free(monitor->alloc, monitor);
}

static dsc_status find_server(const dsc_http_api **out, dsc_error *err)
{
    char reason[512] = "";
    dsc_http_api_fn get = NULL;
    void *plugin = dsc_plugin_open("libdsc_http.so", reason, sizeof reason);
    if (plugin == NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.prometheus_port", "this installation has no libdsc_http.so%s%s; "
                        "install libmicrohttpd-dev (make deps-http) and build again, or take the port out",
                        reason[0] != 0 ? ": " : "", reason);
    if (!dsc_plugin_find(plugin, DSC_HTTP_SYMBOL, &get) || get()->version != DSC_HTTP_API_VERSION ||
        get()->table_bytes != sizeof(dsc_http_api))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.prometheus_port", "libdsc_http.so is of another version of dsc");
    *out = get();
    return DSC_OK;
}

dsc_status dsc_monitor_prometheus(dsc_alloc *alloc, int64_t port, dsc_monitor **out, dsc_error *err)
{
    static const dsc_monitor_ops ops = { "dsc.prometheus_port", write_prometheus, close_prometheus };
    const dsc_http_api *api = NULL;
    char text[DSC_HTTP_TEXT];
    prometheus *p = NULL;
    DSC_TRY(find_server(&api, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *p, &p, err));
    p->monitor.ops = &ops;
    p->monitor.alloc = alloc;
    pthread_mutex_init(&p->lock, NULL);
    *out = &p->monitor;
    p->api = api;
    if (api->open((int)port, page, p, &p->http, text) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.prometheus_port", "nothing can be served at %s", text);
    return DSC_OK;
}
