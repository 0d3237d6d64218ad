/* profile.c - see profile.h: the recorder. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plugin.h"
#include "engine/profile/internal.h"
#include "engine/profile/nvtx.h"

/* Spans are written out when a step ends, or when so many have come. */
enum { SPANS = 8192, COMM_ROWS = 128 };

struct dsc_profile {
    dsc_profile_options o;
    pthread_mutex_t lock; /* collectives run on threads of their own */
    dsc_profile_module *modules;
    dsc_module_times *times;
    int32_t module_count;
    bool tracing, timing;
    dsc_trace trace;
    dsc_span *spans;
    int64_t span_count, step; /* the step that is under way */
    const dsc_nvtx_api *nvtx; /* NULL: nobody wants ranges */
    void *domain;
    dsc_comm_row comm_row[COMM_ROWS];
    int32_t comm_row_count;
};

/* Ranges serve a tool that has started this program, or a tool that the config announces. */
static bool wants_ranges(const dsc_config *config)
{
    const char *tool = getenv("NVTX_INJECTION64_PATH");
    return config->own.nvtx || (tool != NULL && tool[0] != 0);
}

static dsc_status open_ranges(dsc_profile *p, dsc_error *err)
{
    static const dsc_plugin plugin = { .key = "dsc.nvtx",
                                       .file = "libdsc_nvtx.so",
                                       .package = "the CUDA toolkit (make deps-cuda)",
                                       .instead = "take the key out",
                                       .symbol = DSC_NVTX_SYMBOL,
                                       .version = DSC_NVTX_API_VERSION,
                                       .table_bytes = sizeof(dsc_nvtx_api) };
    const void *api = NULL;
    const dsc_status status = dsc_plugin_table(&plugin, &api, p->o.config->own.nvtx ? err : NULL);
    if (status != DSC_OK)
        return p->o.config->own.nvtx ? status : DSC_OK;
    p->nvtx = api;
    p->domain = p->nvtx->open("dsc");
    return DSC_OK;
}

dsc_status dsc_profile_open(const dsc_profile_options *options, dsc_profile **out, dsc_error *err)
{
    const dsc_config *config = options->config;
    dsc_profile *p = NULL;
    *out = NULL;
    const bool ranges = wants_ranges(config);
    if (config->own.trace[0] == 0 && !config->flops_profiler.enabled && !config->comms_logger.enabled && !ranges)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *p, &p, err));
    p->o = *options;
    p->trace.file = (dsc_file)DSC_FILE_INIT;
    p->step = 1;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return ranges ? open_ranges(p, err) : DSC_OK;
}

dsc_status dsc_profile_start(dsc_profile *p, dsc_comm *comm, const dsc_profile_module *modules, int32_t module_count,
                             dsc_error *err)
{
    if (p == NULL)
        return DSC_OK;
    dsc_alloc *alloc = p->o.alloc;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, module_count, sizeof *p->modules, &p->modules, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, module_count, sizeof *p->times, &p->times, err));
    for (int32_t m = 0; m < module_count; m++)
        p->modules[m] = modules[m];
    p->module_count = module_count;
    if (p->o.config->own.trace[0] == 0)
        return DSC_OK;
    p->trace.io = p->o.io;
    p->trace.log = p->o.log;
    DSC_TRY(dsc_trace_open(&p->trace, p->o.config->own.trace, &p->o.place, comm, err));
    dsc_span *spans = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, SPANS, sizeof *spans, &spans, err));
    pthread_mutex_lock(&p->lock);
    p->spans = spans;
    p->tracing = true;
    pthread_mutex_unlock(&p->lock);
    return DSC_OK;
}

/* Under the lock. */
static void write_out(dsc_profile *p)
{
    if (p->span_count > 0)
        dsc_trace_write(&p->trace, p->spans, p->span_count, p->modules, p->step);
    p->span_count = 0;
}

static void record(dsc_profile *p, const dsc_span *span)
{
    if (!p->tracing)
        return;
    if (p->span_count == SPANS)
        write_out(p);
    p->spans[p->span_count++] = *span;
}

static bool is_logged(const dsc_profile *p, dsc_comm_op op)
{
    const dsc_comms_logger_config *config = &p->o.config->comms_logger;
    return config->enabled && (config->prof_all || (config->ops >> op & 1) != 0);
}

/* A run's collectives have few sizes, so the table is small. A size without a free row counts in the last row. */
static void count_call(dsc_profile *p, dsc_comm_op op, int64_t bytes, int64_t ns)
{
    int32_t i = 0;
    while (i < p->comm_row_count && (p->comm_row[i].op != op || p->comm_row[i].bytes != bytes))
        i++;
    if (i == p->comm_row_count && i < COMM_ROWS)
        p->comm_row[p->comm_row_count++] = (dsc_comm_row){ .op = op, .bytes = bytes };
    i = i < COMM_ROWS ? i : COMM_ROWS - 1;
    p->comm_row[i].calls++;
    p->comm_row[i].ns += ns;
}

void dsc_profile_comm(void *user, int32_t channel, dsc_comm_op op, int64_t bytes, int64_t start_ns, int64_t end_ns,
                      dsc_status status)
{
    dsc_profile *p = user;
    const dsc_span span = { start_ns, end_ns, bytes, channel, -1, (uint8_t)op };
    if (status != DSC_OK)
        return;
    pthread_mutex_lock(&p->lock);
    record(p, &span);
    if (is_logged(p, op))
        count_call(p, op, bytes, end_ns - start_ns);
    pthread_mutex_unlock(&p->lock);
}

bool dsc_profile_wants_modules(const dsc_profile *p, int64_t step)
{
    return p != NULL && p->o.place.rank == 0 && p->o.config->flops_profiler.enabled &&
           step == p->o.config->flops_profiler.profile_step;
}

static void time_module(dsc_profile *p, dsc_span_kind kind, int32_t module, int64_t ns)
{
    dsc_module_times *times = &p->times[module];
    if (kind == DSC_SPAN_FORWARD) {
        times->forward_ns += ns;
        times->forward_calls++;
    } else if (kind == DSC_SPAN_RECOMPUTE) {
        times->backward_ns += ns;
        times->recompute_calls++;
    } else if (kind == DSC_SPAN_BACKWARD) {
        times->backward_ns += ns;
        times->backward_calls++;
    }
}

void dsc_profile_begin(dsc_profile *p, dsc_span_kind kind, int32_t module)
{
    char text[128];
    if (p == NULL || p->nvtx == NULL)
        return;
    dsc_profile_name(kind, module >= 0 ? p->modules[module].name : NULL, text, sizeof text);
    p->nvtx->push(p->domain, text);
}

void dsc_profile_span(dsc_profile *p, dsc_span_kind kind, int32_t module, int64_t start_ns, int64_t end_ns)
{
    const dsc_span span = { start_ns, end_ns, 0, -1, module, (uint8_t)kind };
    if (p == NULL)
        return;
    if (p->nvtx != NULL)
        p->nvtx->pop(p->domain);
    pthread_mutex_lock(&p->lock);
    record(p, &span);
    pthread_mutex_unlock(&p->lock);
    if (module >= 0 && dsc_profile_wants_modules(p, p->step))
        time_module(p, kind, module, end_ns - start_ns);
}

void dsc_profile_step(dsc_profile *p, int64_t step)
{
    if (p == NULL)
        return;
    if (dsc_profile_wants_modules(p, step))
        dsc_profile_modules_table(&p->o, step, p->modules, p->times, p->module_count);
    pthread_mutex_lock(&p->lock);
    write_out(p);
    p->step = step + 1;
    const int64_t last = p->o.config->own.trace_steps;
    if (p->tracing && last > 0 && step >= last) {
        p->tracing = false;
        dsc_trace_close(&p->trace);
    }
    pthread_mutex_unlock(&p->lock);
}

void dsc_profile_close(dsc_profile **profile)
{
    dsc_profile *p = *profile;
    if (p == NULL)
        return;
    if (p->tracing)
        write_out(p);
    dsc_trace_close(&p->trace);
    if (p->o.config->comms_logger.enabled && p->o.place.rank == 0)
        dsc_profile_comm_table(&p->o, p->comm_row, p->comm_row_count);
    if (p->nvtx != NULL)
        p->nvtx->close(p->domain);
    pthread_mutex_destroy(&p->lock);
    dsc_alloc_free(p->o.alloc, p->spans);
    dsc_alloc_free(p->o.alloc, p->times);
    dsc_alloc_free(p->o.alloc, p->modules);
    dsc_alloc_free(p->o.alloc, p);
    *profile = NULL;
}
