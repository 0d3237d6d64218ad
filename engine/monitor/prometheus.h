/* prometheus.h - the last of each number, as Prometheus reads it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MONITOR_PROMETHEUS_H
#define DSC_ENGINE_MONITOR_PROMETHEUS_H

#include "engine/monitor/monitor.h"

typedef struct dsc_prometheus {
    int64_t samples;
    dsc_scalar last[2 * DSC_MONITOR_SCALARS_MAX];
    int count;
} dsc_prometheus;

void dsc_prometheus_set(dsc_prometheus *p, int64_t samples, const dsc_scalar *scalars, int count);
/* Returns the bytes written to out[capacity], which holds every number there can be. */
size_t dsc_prometheus_text(const dsc_prometheus *p, char *out, size_t capacity);

#endif
