/* internal.h - types shared by the files of engine/profile/. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PROFILE_INTERNAL_H
#define DSC_ENGINE_PROFILE_INTERNAL_H

#include <pthread.h>

#include "engine/profile/profile.h"

/* A span of work; of a collective when channel >= 0. */
typedef struct dsc_span {
    int64_t start_ns, end_ns, bytes;
    int32_t channel, module;
    uint8_t kind; /* dsc_span_kind, or dsc_comm_op */
} dsc_span;

/* ---- trace.c: Chrome's trace event format, which Perfetto reads too ---- */

typedef struct dsc_trace {
    const dsc_io *io;
    const dsc_log *log;
    dsc_file file;
    int64_t base_ns; /* dsc_clock_ns at the trace's time 0 */
    int32_t rank;
} dsc_trace;

/* Collective. Every rank appends whole lines to the one file; a host that does not see rank 0's has a file of its
 * own. */
dsc_status dsc_trace_open(dsc_trace *trace, const char *path, const dsc_rank_info *place, dsc_comm *comm,
                          dsc_error *err);
/* A file that cannot be written (a full disk) gets one warning and is closed. */
void dsc_trace_write(dsc_trace *trace, const dsc_span *spans, int64_t count, const dsc_profile_module *modules,
                     int64_t step);
void dsc_trace_close(dsc_trace *trace);

/* ---- tables.c ---- */

typedef struct dsc_module_times {
    int64_t forward_ns, backward_ns; /* recomputation counts with backward */
    int64_t forward_calls, recompute_calls, backward_calls;
} dsc_module_times;
void dsc_profile_modules_table(const dsc_profile_options *options, int64_t step, const dsc_profile_module *modules,
                               const dsc_module_times *times, int32_t count);

/* "h.0 forward": what a trace, and a range, calls a span. */
void dsc_profile_name(dsc_span_kind kind, const char *module, char *out, size_t out_bytes); /* module NULL: none */

/* Collectives of one operation and size. */
typedef struct dsc_comm_row {
    dsc_comm_op op;
    int64_t bytes, calls, ns;
} dsc_comm_row;
void dsc_profile_comm_table(const dsc_profile_options *options, dsc_comm_row *rows, int32_t count); /* sorts them */

#endif
