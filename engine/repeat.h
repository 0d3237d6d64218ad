/* repeat.h - a step that is computed twice before its update.
 *
 * The same weights and samples give the same bits (docs/ARCHITECTURE.md), so a rank whose gradient parts are others the
 * second time has faulty hardware. Nothing of the first pass is kept but numbers: the weights have not changed yet. The
 * second pass also finds the samples with the largest losses. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_REPEAT_H
#define DSC_ENGINE_REPEAT_H

#include <dsc/dsc.h>

#include "kernels/exact.h"

#define DSC_WORST_SAMPLES 3

typedef struct dsc_sample_loss {
    double loss;
    int64_t sample; /* number in the run; -1: none */
} dsc_sample_loss;

typedef enum dsc_rank_verdict { DSC_RANK_AGREES, DSC_RANK_PART_DIFFERS, DSC_RANK_SUM_DIFFERS } dsc_rank_verdict;

/* The result of a rank's second pass, for all ranks. */
typedef struct dsc_rank_report {
    dsc_sample_loss worst[DSC_WORST_SAMPLES]; /* the largest first */
    int32_t verdict;                          /* dsc_rank_verdict */
    char module[64], host[64];
} dsc_rank_report;

/* The part of struct dsc_engine. */
typedef struct dsc_engine_repeat {
    bool is_second; /* the pass that runs repeats the step */
    bool is_over;   /* the step was repeated, with equal bits */
    double loss, norm; /* results of the first pass, as the two below */
    dsc_fixed_sum sum; /* this rank's part of the sum of squares */
    uint32_t requests;
    dsc_sample_loss worst[DSC_WORST_SAMPLES]; /* samples of this rank, in the second pass */
} dsc_engine_repeat;

/* Whether the step that runs can be computed again: by train_batch, from a data source. */
bool dsc_repeat_is_possible(const dsc_engine *engine);
/* Instead of the first pass's update: keeps its numbers and makes the engine ready for the second one. */
dsc_status dsc_repeat_start(dsc_engine *engine, double loss, double norm, uint32_t requests, dsc_error *err);
/* After the second pass's sums. Collective. DSC_ERR_DEVICE: a rank has other bits than in the first pass. */
dsc_status dsc_repeat_compare(dsc_engine *engine, double loss, double norm, dsc_error *err);
/* In the second pass, while the losses of a micro-step are there: ranks its samples. */
void dsc_repeat_note_losses(dsc_engine *engine, int64_t micro_step);
/* The samples of all ranks with the largest losses, as text: "480123 (loss 11.2, a.txt, tokens 64 to 127), ...". */
void dsc_repeat_describe_samples(const dsc_engine *engine, char *out, size_t out_bytes);

#endif
