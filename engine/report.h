/* report.h - log lines of rank 0, monitors, and spans of the profile.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_REPORT_H
#define DSC_ENGINE_REPORT_H

#include <dsc/dsc.h>

#include "engine/exchange.h"
#include "engine/monitor/gpu_sensor.h"
#include "engine/monitor/monitor.h"
#include "engine/preference.h"
#include "engine/profile/profile.h"
#include "engine/text_evaluation.h"

/* Parts of struct dsc_engine: times of this step so far, and of the last step. */
typedef struct dsc_engine_times {
    int64_t step_start_ns, forward_ns, backward_ns, update_ns, data_wait_ns;
    int64_t last_forward_ns, last_backward_ns, last_step_ns, last_data_wait_ns;
    dsc_exchange_counts exchange_before, last_exchange; /* at the step's start; of the last step */
} dsc_engine_times;

/* And the destinations of reports. */
typedef struct dsc_engine_output {
    char numerics[400];     /* the line "numerics:" */
    dsc_monitors *monitors; /* on rank 0, NULL without any */
    dsc_log program_log;    /* destination after the monitors have read the engine's log */
    dsc_gpu_sensor *sensor; /* this rank's GPU; NULL: not requested or not available */
    char *hosts;            /* [W][DSC_MONITOR_HOST_BYTES] on rank 0 where a page shows them */
    dsc_profile *profile;   /* NULL: nobody wants to know */
    struct dsc_value_trace *values; /* value_trace.c; NULL: no module's values are reported */
} dsc_engine_output;

/* report.c */
void dsc_engine_report_config(const dsc_engine *engine);
void dsc_engine_note(const dsc_engine *engine, const char *what, const char *taken); /* `taken` replaces `what` */
dsc_status dsc_engine_open_profile(dsc_engine *engine, dsc_error *err);  /* precedes the communicators */
dsc_status dsc_engine_start_profile(dsc_engine *engine, dsc_error *err); /* needs the plan; collective */
/* A span of the profile covers the work between these two calls. */
int64_t dsc_engine_span_start(const dsc_engine *engine, dsc_span_kind kind, int32_t module);
void dsc_engine_span_end(const dsc_engine *engine, dsc_span_kind kind, int32_t module, int64_t start_ns);
dsc_status dsc_engine_open_monitors(dsc_engine *engine, dsc_error *err); /* collective */
void dsc_engine_describe(const dsc_engine *engine);                      /* to the monitors, when all is open */
void dsc_engine_report_step(const dsc_engine *engine, const dsc_step_result *result);
typedef struct dsc_evaluation {
    double loss;
    dsc_pair_sums pairs;    /* of a model that is trained on pairs */
    dsc_text_evaluation texts; /* of a model that makes vectors of texts */
    int64_t items, right;   /* that count; right: of a model with labels that are classes */
    bool ranked;            /* the next number is known */
    int64_t right_of_five;  /* items whose class is among the five most likely ones */
} dsc_evaluation;
/* evaluate.c: memory for evaluations of vectors of texts, which is taken before the run begins. */
typedef struct dsc_engine_texts {
    double *targets;               /* [W * micro-batch, 2] places and scores of a round's samples */
    dsc_scored_pair *pair, *ranks; /* [room] pairs of dsc.eval_data */
    int64_t room;
} dsc_engine_texts;
dsc_status dsc_engine_open_texts(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_texts(dsc_engine *engine);
void dsc_engine_report_evaluation(const dsc_engine *engine, const dsc_evaluation *result);

/* info.c: writes output.numerics. */
void dsc_engine_describe_numerics(dsc_engine *engine);

#endif
