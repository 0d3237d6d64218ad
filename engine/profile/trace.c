/* trace.c - spans as Chrome's trace events ("Trace Event Format", JSON array form, where the last bracket is optional).
 * A rank is a process; its threads are the engine and the channels of collectives.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/formats/json.h"
#include "engine/profile/internal.h"

enum { LINE_BYTES = 512, TEXT_BYTES = 65536 };

/* Tracks of a rank, in the order in which they are shown; channel c is 1 + c. */
static const char *const tracks[] = { "engine", "collectives: control", "collectives: gather", "collectives: reduce",
                                      "collectives: 3" };

static void stop(dsc_trace *trace, const dsc_error *err)
{
    dsc_log_printf(trace->log, DSC_LOG_WARNING, "dsc.trace: %s: %s; the run goes on without it", err->where,
                   err->message);
    dsc_trace_close(trace);
}

static void append(dsc_trace *trace, const char *text, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    if (trace->file.fd >= 0 && bytes > 0 &&
        dsc_io_write(trace->io, &trace->file, text, (int64_t)bytes, 0, &err) != DSC_OK)
        stop(trace, &err);
}

static void write_names(dsc_trace *trace, const dsc_rank_info *place)
{
    char host[65] = "host", name[96], quoted[256], text[4096];
    size_t used;
    (void)gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "rank %d of %d on %s", (int)place->rank, (int)place->size, host);
    (void)dsc_json_quote(quoted, sizeof quoted, name);
    used = (size_t)snprintf(text, sizeof text,
                            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":%s}},\n"
                            "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n",
                            (int)place->rank, quoted, (int)place->rank, (int)place->rank);
    for (size_t i = 0; i < DSC_COUNT(tracks); i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":"
                                 "\"%s\"}},\n", (int)place->rank, (int)i, tracks[i]);
    append(trace, text, used);
}

/* Rank 0's file is there before anybody else looks: hosts that share the folder append to it. */
static dsc_status open_file(dsc_trace *trace, const char *path, bool first, dsc_error *err)
{
    if (first) {
        DSC_TRY(dsc_io_write_all_atomic(trace->io, path, "[\n", 2, err));
    } else if (dsc_io_kind(path) == DSC_PATH_MISSING) {
        dsc_file made = DSC_FILE_INIT;
        if (dsc_io_open(trace->io, path, DSC_IO_CREATE_NEW, &made, NULL) == DSC_OK) { /* else a neighbour was faster */
            const dsc_status status = dsc_io_write(trace->io, &made, "[\n", 2, 0, err);
            (void)dsc_io_close(trace->io, &made, NULL);
            DSC_TRY(status);
        }
    }
    return dsc_io_open(trace->io, path, DSC_IO_APPEND, &trace->file, err);
}

dsc_status dsc_trace_open(dsc_trace *trace, const char *path, const dsc_rank_info *place, dsc_comm *comm,
                          dsc_error *err)
{
    struct { int64_t wall_ns, made; } start = { dsc_clock_wall_ns(), 0 };
    dsc_error failure = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    if (place->rank == 0)
        status = open_file(trace, path, true, &failure);
    start.made = status == DSC_OK;
    DSC_TRY(dsc_comm_broadcast(comm, 0, &start, (int64_t)sizeof start, 0, NULL, err));
    if (status != DSC_OK && err != NULL)
        *err = failure;
    DSC_TRY(status);
    if (start.made == 0)
        return DSC_FAIL(err, DSC_ERR_PEER, path, "rank 0 cannot write the trace");
    if (place->rank != 0)
        DSC_TRY(open_file(trace, path, false, err));
    trace->rank = place->rank;
    trace->base_ns = dsc_clock_ns() - (dsc_clock_wall_ns() - start.wall_ns); /* hosts agree as well as their clocks */
    write_names(trace, place);
    return DSC_OK;
}

static const char *const kinds[DSC_SPAN_KIND_COUNT] = { "forward", "recompute", "backward", "update",
                                                        "wait for data", "evaluate", "save" };

void dsc_profile_name(dsc_span_kind kind, const char *module, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%.60s%s%s", module != NULL ? module : "", module != NULL ? " " : "", kinds[kind]);
}

static size_t format(const dsc_trace *trace, const dsc_span *span, const dsc_profile_module *modules, int64_t step,
                     char line[LINE_BYTES])
{
    const bool collective = span->channel >= 0;
    const char *kind = collective ? dsc_comm_op_text((dsc_comm_op)span->kind) : kinds[span->kind];
    char name[128], quoted[300];
    if (collective)
        snprintf(name, sizeof name, "%s", kind);
    else
        dsc_profile_name((dsc_span_kind)span->kind, span->module >= 0 ? modules[span->module].name : NULL, name,
                         sizeof name);
    (void)dsc_json_quote(quoted, sizeof quoted, name);
    return (size_t)snprintf(line, LINE_BYTES,
                            "{\"name\":%s,\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,"
                            "\"args\":{\"step\":%lld,\"bytes\":%lld}},\n",
                            quoted, collective ? "comm" : kind, (double)(span->start_ns - trace->base_ns) * 1e-3,
                            (double)(span->end_ns - span->start_ns) * 1e-3, (int)trace->rank, 1 + (int)span->channel,
                            (long long)step, (long long)span->bytes);
}

void dsc_trace_write(dsc_trace *trace, const dsc_span *spans, int64_t count, const dsc_profile_module *modules,
                     int64_t step)
{
    char text[TEXT_BYTES];
    size_t used = 0;
    for (int64_t i = 0; i < count && trace->file.fd >= 0; i++) {
        if (used + LINE_BYTES > sizeof text) {
            append(trace, text, used);
            used = 0;
        }
        used += format(trace, &spans[i], modules, step, text + used);
    }
    append(trace, text, used);
}

void dsc_trace_close(dsc_trace *trace)
{
    if (trace->file.fd >= 0)
        (void)dsc_io_close(trace->io, &trace->file, NULL);
}
