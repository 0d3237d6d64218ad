/* companions.h - the files of a model folder that its use needs beside config.json and the weights: the tokenizer, the
 * chat template, the settings of generation.
 *
 * Checkpoints and exports hold copies. A checkpoint has their hashes, as lines of sha256sum. A run does not load the
 * copies, so a load leaves them out; `dsc ckpt verify` compares them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_COMPANIONS_H
#define DSC_ENGINE_CHECKPOINT_COMPANIONS_H

#include "base/hash.h"
#include "base/io.h"

#include <dsc/model.h>

typedef struct dsc_ckpt_companions {
    const char *model;     /* folder of the model; NULL: none */
    const char *tokenizer; /* folder or tokenizer.json that the run uses instead of the model's; "": the model's own;
                            * "none": the run has none. NULL is "" */
} dsc_ckpt_companions;

/* Lines "<64 hex digits>  <name>", one for each copy. */
typedef struct dsc_ckpt_companion_list {
    char text[4096];
    int64_t bytes;
} dsc_ckpt_companion_list;

/* Copies those that are there into `to`, a folder without them, and appends their lines to the list (may be NULL). A
 * larger file than 256 MB: DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_ckpt_copy_companions(const dsc_io *io, const dsc_ckpt_companions *from, const char *to,
                                                 dsc_ckpt_companion_list *list, dsc_error *err);
/* Writes DSC_MODEL_CARRIED_FILE into `to`, and appends its line. carried.c */
DSC_MUST_USE dsc_status dsc_ckpt_write_carried(const dsc_io *io, const dsc_model_carried *carried, const char *to,
                                               dsc_ckpt_companion_list *list, dsc_error *err);
/* Copies that of the checkpoint `from`, if there is one. */
DSC_MUST_USE dsc_status dsc_ckpt_copy_carried(const dsc_io *io, const char *from, const char *to, dsc_error *err);
/* Compares the files of a checkpoint with the lines of its list. `name`: this file alone, which must be listed; NULL:
 * all. */
DSC_MUST_USE dsc_status dsc_ckpt_check_companions(const dsc_io *io, dsc_alloc *alloc, const char *step_dir,
                                                  const char *name, dsc_error *err);
/* For who makes companions. */
void dsc_ckpt_companion_add(dsc_ckpt_companion_list *list, const char *name, const uint8_t sha256[32]);

/* Text of a config.json with this dtype of the weights in "torch_dtype" and "dtype", whichever it has, owned by the
 * caller (dsc_alloc_free). Text that is not an object is copied. */
DSC_MUST_USE dsc_status dsc_ckpt_config_with_dtype(dsc_alloc *alloc, const char *text, int64_t bytes, dsc_dtype dtype,
                                                   char **out, int64_t *out_bytes, dsc_error *err);

#endif
