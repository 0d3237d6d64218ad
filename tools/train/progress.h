/* progress.h - output of a run: a line per step, a live bar on a terminal, the JSONL log, a loss curve.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TRAIN_PROGRESS_H
#define DSC_TOOLS_TRAIN_PROGRESS_H

#include <stdio.h>

#include <dsc/dsc.h>

typedef struct train_progress {
    bool terminal; /* stdout shows a live bar */
    int columns;
    FILE *jsonl, *text; /* NULL: not wanted */
    int64_t first_step, last_step, steps_per_epoch, every;
    int64_t start_ns, epoch_start_ns, epoch, tokens;
    double flops_per_step; /* values of the last step */
    int64_t seq_length;    /* length of whole samples, if steps have their own lengths; else 0 */
    bool pairs;            /* steps have rewards */
    int32_t routers, experts; /* number in the model; 0: none */
    bool router_losses;
    int32_t ranks;
    bool pictures;         /* what steps count as tokens are images */
    const dsc_engine *loads; /* each step's loads are logged; NULL: they are not */
    int64_t memory_bytes;
    double step_ns_smooth; /* exponential mean, for the ETA */
    double *loss; /* loss of every step, for the curve; NULL without memory */
    int64_t loss_count;
} train_progress;

int64_t train_now_ns(void); /* monotonic */
/* Opens the logs that the run wants (creating the folder of the text log). Only rank 0 shows progress. */
dsc_status train_progress_open(train_progress *p, const dsc_run_info *info, const dsc_engine_stats *stats,
                               int64_t first_step, dsc_error *err);
dsc_status train_progress_step(train_progress *p, const dsc_step_result *result, dsc_error *err);
/* A line of the JSONL log with the loss and the accuracies of an evaluation, if the model sees pictures. */
dsc_status train_progress_evaluated(train_progress *p, int64_t step, double loss, const dsc_engine_stats *stats,
                                    dsc_error *err);
/* A line of the JSONL log: the run goes on after `step` in another world of ranks. seconds: since the last one ended;
 * below 0: not known. */
dsc_status train_progress_world(train_progress *p, uint32_t generation, int64_t step, double seconds, dsc_error *err);
/* One plain line, above the bar and into the text log. */
void train_progress_say(train_progress *p, const char *fmt, ...) DSC_PRINTF(2, 3);
/* Draws the losses so far, `rows` lines high. */
void train_progress_curve(train_progress *p, int rows);
void train_progress_close(train_progress *p);

#endif
