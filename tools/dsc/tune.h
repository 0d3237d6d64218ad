/* tune.h - the two halves of `dsc tune`: tune_space.c knows what can be chosen and what fits, tune.c tries it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TUNE_H
#define DSC_TOOLS_TUNE_H

#include "tools/dsc/trial.h"

/* Placement of states: as the file has it, on the device, the optimizer's in host memory, parameters there too; the
 * optimizer's in files, parameters there too. */
typedef enum tune_tier {
    TUNE_AS_IT_IS,
    TUNE_DEVICE,
    TUNE_OPTIMIZER_ON_HOST,
    TUNE_ALL_ON_HOST,
    TUNE_OPTIMIZER_IN_FILES,
    TUNE_ALL_IN_FILES
} tune_tier;
typedef enum tune_overlap { TUNE_OVERLAP_AS_IT_IS, TUNE_OVERLAP_OFF, TUNE_OVERLAP_ON } tune_overlap;

typedef struct tune_choice {
    int stage; /* -1: the file as it is; nothing below counts but the batch */
    dsc_recompute recompute;
    tune_tier tier;
    int64_t micro_batch, accumulation;
    tune_overlap overlap;
    int64_t reduce_bucket, prefetch_bucket; /* elements; < 0: as it is */
    /* Settings of states in files: */
    bool grouped, speculative; /* all micro-batches of a step in one group; updates before the norm; false: as it is */
    double ratio, gradients; /* shares: states in files, sums in memory; < 0: as it is */
    int64_t pipeline;        /* stages of a pipeline; 0: as it is */
} tune_choice;
#define TUNE_CHOICE_INIT                                                                                               \
    {                                                                                                                  \
        -1, DSC_RECOMPUTE_NONE, TUNE_AS_IT_IS, 0, 0, TUNE_OVERLAP_AS_IT_IS, -1, -1, false, false, -1, -1, 0            \
    }

typedef struct tune_limits {
    int64_t ranks;
    int64_t stages;       /* stages of the file's pipeline, which divide the ranks */
    int64_t batch;        /* samples of a step, fixed; 0: it may change, with constant `accumulation` */
    int64_t accumulation;
    int64_t micro_most;
    int64_t tensor;       /* the file's tensor ranks */
} tune_limits;

/* Whether states of this config can be there: in host memory where they are on GPUs else, in files where it names a
 * folder for them (nvme_path). */
bool tune_can_be(const trial_setup *setup, tune_tier tier, bool on_gpus);
/* Into a copy of the file's values, which the caller deletes. */
DSC_MUST_USE dsc_status tune_apply(const trial_setup *setup, const tune_choice *choice, cJSON **out, dsc_error *err);
/* The planner's result for a choice. A choice that a config cannot have does not fit. */
typedef struct tune_fit {
    bool fits;     /* every rank has room */
    int64_t bytes; /* that each takes, in the stage with most */
    bool on_gpus;
    double first_ratio; /* as dsc_zero_first_share */
} tune_fit;
DSC_MUST_USE dsc_status tune_plan(const trial_setup *setup, const tune_choice *choice, int64_t ranks, tune_fit *out,
                                  dsc_error *err);
/* Ranks that share the samples of a step. */
int64_t tune_data_ranks(const tune_limits *limits, const tune_choice *choice);
/* The next micro-batch below `micro_batch` (0: the largest at all) that the limits allow, with its accumulation; false:
 * there is none. */
bool tune_next_batch(const tune_limits *limits, int64_t micro_batch, tune_choice *choice);
/* In words, for tables: "stage 2, recompute full, optimizer on host". */
const char *tune_words(const tune_choice *choice, char out[160]);

#endif
