/* run_log.h - the lines of `train --log` as numbers. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_RUN_LOG_H
#define DSC_TOOLS_RUN_LOG_H

#include "base/formats/json.h"

/* Values of a line; RUN_LOG_STEP counts from 1 and comes after the series that can be drawn. */
enum {
    RUN_LOG_LOSS,
    RUN_LOG_LR,
    RUN_LOG_GRAD_NORM,
    RUN_LOG_TOKENS_PER_S,
    RUN_LOG_STEP_MS,
    RUN_LOG_DATA_WAIT_MS,
    RUN_LOG_LOSS_SCALE,
    RUN_LOG_TOKENS,
    RUN_LOG_EPOCH,
    RUN_LOG_IMAGES_PER_S,
    RUN_LOG_SERIES,
    RUN_LOG_STEP = RUN_LOG_SERIES
};
typedef struct run_log_name {
    const char *key, *title;
} run_log_name;
extern const run_log_name run_log_series[RUN_LOG_SERIES];

typedef struct run_log {
    int64_t count;
    double *value[RUN_LOG_SERIES + 1]; /* [count] each; NaN: null, or not in that line */
    int64_t room;
} run_log;

/* *out is zeroed by the caller and freed by run_log_free, also after an error. A log that a resumed run went on with
 * holds some steps twice; the later line counts. A last line without its end is being written, and is left out. */
DSC_MUST_USE dsc_status run_log_read(dsc_alloc *alloc, const char *path, run_log *out, dsc_error *err);
void run_log_free(dsc_alloc *alloc, run_log *log);

#endif
