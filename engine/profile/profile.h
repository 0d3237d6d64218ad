/* profile.h - time spans of a rank for four outputs:
 *   - a trace of all ranks (dsc.trace, for Perfetto and chrome://tracing),
 *   - a table of the modules of one step (flops_profiler),
 *   - a table of collectives (comms_logger),
 *   - ranges for a tool that watches this process (NVTX: dsc.nvtx, or a tool that has set NVTX_INJECTION64_PATH).
 *
 * Callers report the begin and the end of their work. Without any of the four outputs, dsc_profile is NULL and a report
 * costs one comparison. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PROFILE_PROFILE_H
#define DSC_ENGINE_PROFILE_PROFILE_H

#include <dsc/log.h>
#include <dsc/model.h>

#include "base/io.h"
#include "comm/comm.h"
#include "engine/config/config.h"

typedef enum dsc_span_kind {
    DSC_SPAN_FORWARD, DSC_SPAN_RECOMPUTE, DSC_SPAN_BACKWARD, /* of a module */
    DSC_SPAN_UPDATE, DSC_SPAN_DATA, DSC_SPAN_EVALUATE, DSC_SPAN_SAVE,
    DSC_SPAN_KIND_COUNT
} dsc_span_kind;

typedef struct dsc_profile_module {
    const char *name; /* borrowed until close */
    int64_t parameters;
    double forward_flops, backward_flops, recompute_flops; /* of one micro-batch */
} dsc_profile_module;

typedef struct dsc_profile_options {
    dsc_alloc *alloc; /* this and the next three are borrowed until close */
    const dsc_io *io;
    const dsc_log *log;
    const dsc_config *config;
    dsc_rank_info place;
} dsc_profile_options;

typedef struct dsc_profile dsc_profile;

/* *out is NULL when nobody wants any of the four. *out may be there after a failure, too: close it. */
DSC_MUST_USE dsc_status dsc_profile_open(const dsc_profile_options *options, dsc_profile **out, dsc_error *err);
/* Before the first step; `modules` are copied. Collective over `comm` where the config has dsc.trace: the ranks agree
 * on a file and on its time 0. A file that cannot be written is an error of all. profile may be NULL. */
DSC_MUST_USE dsc_status dsc_profile_start(dsc_profile *profile, dsc_comm *comm, const dsc_profile_module *modules,
                                          int32_t module_count, dsc_error *err);
/* Writes what is left and, on rank 0, the table of collectives. */
void dsc_profile_close(dsc_profile **profile);

/* The hook of a communicator; user is the dsc_profile. */
void dsc_profile_comm(void *user, int32_t channel, dsc_comm_op op, int64_t bytes, int64_t start_ns, int64_t end_ns,
                      dsc_status status);
/* True in the step whose modules are timed: device work must be waited for before and after each. */
bool dsc_profile_wants_modules(const dsc_profile *profile, int64_t step);
/* Times are dsc_clock_ns. module -1: none. All these functions are for the engine's thread. A span begins before its
 * report, except spans that a failure ends. */
void dsc_profile_begin(dsc_profile *profile, dsc_span_kind kind, int32_t module);
void dsc_profile_span(dsc_profile *profile, dsc_span_kind kind, int32_t module, int64_t start_ns, int64_t end_ns);
/* `step` ended: its lines go to the trace, its modules' table to the log. */
void dsc_profile_step(dsc_profile *profile, int64_t step);

#endif
