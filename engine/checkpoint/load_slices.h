/* load_slices.h - blocks of an open checkpoint that a rank takes: those that overlap its slices.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_LOAD_SLICES_H
#define DSC_ENGINE_CHECKPOINT_LOAD_SLICES_H

#include "engine/checkpoint/spread.h"

typedef struct dsc_ckpt_slices_load {
    const dsc_ckpt_ctx *c;
    const dsc_ckpt_reader *reader; /* its names and shapes are the model's */
    const char *step_dir;
    dsc_dtype dtype; /* this run's compute dtype */
    dsc_recipe recipe;
    const dsc_ckpt_spread *spread; /* holders of each part; NULL: every rank has everything */
} dsc_ckpt_slices_load;

/* One pass: every block that is here is verified, and with `copy` its part of the slices then written. */
DSC_MUST_USE dsc_status dsc_ckpt_load_slices(const dsc_ckpt_slices_load *t, bool copy, dsc_error *err);
/* Collective, with t->spread: the same of blocks that are not, from who has them; a block at a time. */
DSC_MUST_USE dsc_status dsc_ckpt_load_sent(const dsc_ckpt_slices_load *t, bool copy, dsc_error *err);

#endif
