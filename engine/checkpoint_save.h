/* checkpoint_save.h - one save on its way: what it writes, planned before anything is written, and its phases. All
 * ranks do each phase and then agree (dsc_checkpoint_agree).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_SAVE_H
#define DSC_ENGINE_CHECKPOINT_SAVE_H

#include "engine/checkpoint_internal.h"

typedef struct ckpt_save {
    const dsc_checkpoint_ctx *c;
    const dsc_run_state *state;
    ckpt_commit commit;
    ckpt_entries entries;
    dsc_safetensors_plan plan[CKPT_TENSOR_FILE_COUNT];
    dsc_file file[CKPT_TENSOR_FILE_COUNT];
    ckpt_file_info info[CKPT_FILE_COUNT];
    int64_t *first_block; /* [W + 1] where each rank's blocks start in a list of all */
    ckpt_block *block;    /* this rank's */
    /* Rank 0: */
    ckpt_block *all, *sorted; /* every rank's, in order of ranks and in order of tensors */
    int64_t *first_of_entry;
} ckpt_save;

/* Whatever can be known before a byte is written: what lies where, and that it can be read back. *out is owned by the
 * caller, also after a failure (NULL: no memory). */
dsc_status dsc_ckpt_save_open(const dsc_checkpoint_ctx *c, const char *dir, const dsc_run_state *state,
                              int64_t resumed_step, ckpt_save **out, dsc_error *err);
dsc_status dsc_ckpt_save_plan(ckpt_save *s, dsc_error *err);
void dsc_ckpt_save_close(ckpt_save **save);
/* The model's config.json and the run's ds_config.json, in the order of ckpt_file; NULL: there is none. */
const char *dsc_ckpt_save_text(const ckpt_save *s, ckpt_file f, int64_t *bytes);
/* Rank 0, when `all` is filled: `sorted`, by tensor and position. */
void dsc_ckpt_save_sort(ckpt_save *s);

#endif
