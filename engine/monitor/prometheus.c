/* prometheus.c - numbers in Prometheus' text format 0.0.4.
 *
 * "Train/Samples/lr" is the gauge dsc_lr, "Validation/Samples/loss" is dsc_validation_loss.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/monitor/prometheus.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static size_t put_metric(char *out, size_t capacity, const dsc_scalar *scalar)
{
    const char *name = strrchr(scalar->tag, '/') + 1, *part = strncmp(scalar->tag, "Validation/", 11) == 0
                                                                   ? "validation_" : "";
    char value[40];
    if (isfinite(scalar->value))
        snprintf(value, sizeof value, "%.17g", scalar->value);
    else
        snprintf(value, sizeof value, "%s", isnan(scalar->value) ? "NaN" : scalar->value > 0 ? "+Inf" : "-Inf");
    const int bytes = snprintf(out, capacity, "# TYPE dsc_%s%s gauge\ndsc_%s%s %s\n", part, name, part, name, value);
    return bytes > 0 && (size_t)bytes < capacity ? (size_t)bytes : 0;
}

size_t dsc_prometheus_text(const dsc_prometheus *p, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity,
                                   "# HELP dsc_info The program.\n# TYPE dsc_info gauge\ndsc_info{version=\"%s\"} 1\n"
                                   "# HELP dsc_samples_total Samples trained on.\n# TYPE dsc_samples_total counter\n"
                                   "dsc_samples_total %lld\n",
                                   DSC_VERSION_TEXT, (long long)p->samples);
    for (int i = 0; i < p->count; i++)
        used += put_metric(out + used, capacity - used, &p->last[i]);
    return used;
}

void dsc_prometheus_set(dsc_prometheus *p, int64_t samples, const dsc_scalar *scalars, int count)
{
    p->samples = samples;
    for (int i = 0; i < count; i++) {
        int at = 0;
        while (at < p->count && strcmp(p->last[at].tag, scalars[i].tag) != 0)
            at++;
        if (at < (int)DSC_COUNT(p->last))
            p->last[at] = scalars[i];
        p->count = at == p->count && at < (int)DSC_COUNT(p->last) ? at + 1 : p->count;
    }
}
