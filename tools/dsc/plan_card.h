/* plan_card.h - the time of a step on GPUs that need not be here, from a card's measured rates (bench/cards).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_DSC_PLAN_CARD_H
#define DSC_TOOLS_DSC_PLAN_CARD_H

#include <dsc/dsc.h>

#include "engine/planned.h"
#include "kernels/virtual/virtual.h"

/* The most by which predictions differ from the measured runs in the card's file, which a test checks. */
#define PLAN_CARD_ERROR_PERCENT 15

/* Seconds of one step of a rank. busy_s: of each part, wherever it ran; parts run beside each other. */
typedef struct plan_card_time {
    double step_s;
    double busy_s[DSC_VIRTUAL_PART_COUNT];
    int64_t kernels;
    double flops, tokens; /* of this rank's step */
    int64_t device_planned_bytes, device_peak_bytes; /* by the plan; what the engine took of the card, at most */
    bool pictures;                                   /* tokens are images */
    int32_t streams, events;                         /* counts of the virtual card, for a replay of the trace */
} plan_card_time;

typedef struct plan_card {
    dsc_card_rates rates;
    double peak_flops; /* the data sheet's, for 16-bit products */
    bool measured;     /* else the rates are derived from data sheets */
} plan_card;

/* The rates of the card by the name of its file; case, blanks, dashes and the maker's words are ignored. Files are in
 * ../share/dsc/cards or ../bench/cards beside this program's folder. DSC_ERR_INPUT names the cards that there are. */
DSC_MUST_USE dsc_status plan_card_read(const char *name, plan_card *out, dsc_error *err);
/* The second of two steps, so that no first use counts. `options` are those of a plan; the world has ranks. `trace`
 * gets the items of that step, or is NULL. */
DSC_MUST_USE dsc_status plan_card_predict(const plan_card *card, const dsc_engine_options *options,
                                          dsc_virtual_trace *trace, plan_card_time *out, dsc_error *err);
/* For a real engine: the data of one micro-batch, [PLAN_CARD_BATCH], which the caller frees; one optimizer step. */
#define PLAN_CARD_BATCH 16 /* as models/check.c */
DSC_MUST_USE dsc_status plan_card_open_batch(dsc_alloc *alloc, const dsc_engine_planned *planned, void **data,
                                             dsc_error *err);
DSC_MUST_USE dsc_status plan_card_step(dsc_engine *engine, const void *const *batch, int64_t micro_steps,
                                       dsc_error *err);
void plan_card_print(const plan_card *card, const plan_card_time *time, int64_t ranks);
/* ,"time":{...} */
void plan_card_print_json(const plan_card *card, const plan_card_time *time);

#endif
