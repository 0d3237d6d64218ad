/* tiny_run.h - trains a tiny language model on ranks that are threads, on any device, and holds runs against each
 * other. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_TINY_RUN_H
#define DSC_TESTS_TINY_RUN_H

#include "engine/config/config.h"
#include "tests/support/run_expect.h"

#define TINY_STEPS 3
#define TINY_RATE 0.001
#define TINY_CLIP 0.5
#define TINY_MICRO_BATCH 2

typedef struct tiny_variant {
    const char *device;
    int32_t world, stage, accumulation;
    bool bf16, overlap;
    dsc_recompute recompute;
    const char *own; /* further members of "dsc", each preceded by a comma */
} tiny_variant;

/* `base` may say the steps (0: TINY_STEPS), the data and what else a run has; its states are the caller's to free. */
void tiny_run(const dsc_model *model, const tiny_variant *v, const run_options *base, run_result *out);
void tiny_free_states(run_result *r);
/* Both are runs of `v` but for the device or the transport's sums: the test fails when roundings do not explain how far
 * they are apart. */
void tiny_expect_near(const dsc_model *model, const tiny_variant *v, const run_result *a, const run_result *b);
/* Runs `v`, and the CPU with it; the GPUs' result is for the caller, who frees its states. near: with gradients large
 * enough to be clipped, and a loss that falls. */
void tiny_run_beside_the_cpu(const dsc_model *model, const tiny_variant *v, int64_t steps, run_result *gpu);
void tiny_run_near_the_cpu(const dsc_model *model, const tiny_variant *v, int64_t steps, run_result *gpu);
/* Stages 1 to 3, with overlap and recomputation among them, have stage 0's bits on `world` ranks. */
void tiny_stages_agree(const dsc_model *model, const char *device, int32_t world, bool bf16);

#endif
